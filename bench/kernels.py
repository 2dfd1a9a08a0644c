"""What the native kernels do beside MLX's quantized product and a dense product by OpenBLAS.

The shapes are those of SmolLM2-135M: 4 bits, groups of 32. Each sample computes a product with every one of several
matrices, together larger than the caches, as a step of a model does; graph building and dispatch count. The three ways
take turns, so that what else the machine does meets them alike. The dense product reads one and the same matrix, which
only the head's is too large for the caches to keep: it is shown at its best.

`weights` is matrix elements a second (for one row what counts); `flops` two for each element and row.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import native.blas
from bench import report
from native import kernels

if TYPE_CHECKING:
    import mlx.core as mx

# (outputs, inputs) of q and o, k and v, gate and up, down, the head.
SHAPES = ((576, 576), (192, 576), (1536, 576), (576, 1536), (49152, 576))
ROWS = (1, 4, 16, 128)
BITS = 4
GROUP_SIZE = 32
WORKING_SET_BYTES = 48 * 2**20
MOST_MATRICES = 60
MOST_HEAD_ROWS = 16  # the head is never asked for more rows at once
MOST_MLX_WORK = 4e9  # multiply-adds a sample: more take MLX's own product seconds
GIGA = 1e9
CHILD_TIMEOUT_S = 600

Way = Callable[[], list["mx.array"]]


@dataclass(frozen=True)
class Case:
    """One product: how many rows, and a matrix of which shape."""

    rows: int
    outputs: int
    inputs: int

    @property
    def elements(self) -> int:
        """Elements of the matrix."""
        return self.outputs * self.inputs

    @property
    def matrices(self) -> int:
        """How many matrices a sample uses: more than the caches hold."""
        packed_bytes = self.elements * (BITS / 8 + 8 / GROUP_SIZE)
        return max(1, min(MOST_MATRICES, int(WORKING_SET_BYTES / packed_bytes)))


def main() -> None:
    """Measure every case on one thread and on all, print the figures and write `bench/results/kernels.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9, help="samples of each way")
    parser.add_argument("--measure", type=int, metavar="THREADS", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure_all(arguments.measure, arguments.repeats)))
        return
    print(report.heading("Quantized products on the CPU"))
    counts = sorted({1, os.cpu_count() or 1})
    found = [_in_a_process(threads, arguments.repeats) for threads in counts]
    facts = {"benchmark": "kernels", "bits": BITS, "group_size": GROUP_SIZE}
    print("written:", report.write("kernels", {**facts, "runs": found}).relative_to(report.ROOT))


def _in_a_process(threads: int, repeats: int) -> dict[str, Any]:
    # How many threads OpenBLAS has is settled before MLX is imported.
    command = [sys.executable, "-m", "bench.kernels", "--repeats", str(repeats), "--measure", str(threads)]
    done = subprocess.run(
        command, cwd=report.ROOT, stdout=subprocess.PIPE, text=True, timeout=CHILD_TIMEOUT_S, check=True
    )
    return json.loads(done.stdout)


def measure_all(threads: int, repeats: int) -> dict[str, Any]:
    """Measure every case in this process, which must not have imported MLX before."""
    blas = native.blas.load(threads)
    import mlx.core as mx

    mx.set_default_device(mx.cpu)
    kernels.set_threads(threads)
    chosen, core = kernels.instruction_set(), blas.core if blas else "none"
    print(f"\n{threads} thread(s); kernels for {chosen}, OpenBLAS for {core}", file=sys.stderr)
    cases = [Case(rows, *shape) for shape in SHAPES for rows in ROWS if shape != SHAPES[-1] or rows <= MOST_HEAD_ROWS]
    results = [measure(case, repeats) for case in cases]
    return {"threads": threads, "instruction_set": chosen, "blas_core": core, "results": results}


def measure(case: Case, repeats: int) -> dict[str, Any]:
    """Time the ways of one case in turn."""
    ways = ways_of(case)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            seconds[name].append(timed(way) / case.matrices)
    found = {name: summary(case, samples) for name, samples in seconds.items()}
    rates = [
        f"{name} {rate['weights_best']:6.2f} Gw/s {rate['flops_best']:5.0f} GFLOP/s" for name, rate in found.items()
    ]
    print(f"  {case.rows:4} x {case.inputs:4} x {case.outputs:5}   {'   '.join(rates)}", file=sys.stderr)
    return {"rows": case.rows, "outputs": case.outputs, "inputs": case.inputs, **found}


def summary(case: Case, seconds: Sequence[float]) -> dict[str, Any]:
    """Reduce samples to their spread, and the best to rates: the machine is shared, and slows but never speeds up."""
    return {
        "seconds": report.summary(seconds),
        "weights_best": case.elements / min(seconds) / GIGA,
        "flops_best": 2 * case.rows * case.elements / min(seconds) / GIGA,
    }


def timed(way: Way) -> float:
    """Return the seconds that building and evaluating a graph takes."""
    import mlx.core as mx

    started = time.perf_counter()
    mx.eval(way())
    return time.perf_counter() - started


def ways_of(case: Case) -> dict[str, Way]:
    """Make the matrices of a case, and the ways to multiply them."""
    import mlx.core as mx

    packed = [
        mx.quantize(mx.random.normal((case.outputs, case.inputs)), group_size=GROUP_SIZE, bits=BITS)
        for _ in range(case.matrices)
    ]
    dense = mx.random.normal((case.outputs, case.inputs))
    x = mx.random.normal((case.rows, case.inputs))
    mx.eval(packed, dense, x)

    def by_kernels() -> list[mx.array]:
        return [kernels.quantized_linear(x, *matrix, group_size=GROUP_SIZE, bits=BITS) for matrix in packed]

    def by_mlx() -> list[mx.array]:
        return [
            mx.quantized_matmul(x, codes, scales, biases, transpose=True, group_size=GROUP_SIZE, bits=BITS)
            for codes, scales, biases in packed
        ]

    def by_blas() -> list[mx.array]:
        return [x @ dense.T for _ in packed]

    ways: dict[str, Way] = {"native": by_kernels, "dense_blas": by_blas}
    if case.rows * case.elements * case.matrices < MOST_MLX_WORK:
        ways["mlx"] = by_mlx
    return ways


if __name__ == "__main__":
    main()
