"""What the BLAS binding does: a product, a matrix-vector product, and the matrix products of one prefill.

Each case runs with MLX's own BLAS and with OpenBLAS, alternately, every time in a process of its own, because which
BLAS MLX calls is settled when it is loaded. `quantized_prefill` calls no BLAS: it shows what the binding cannot help.

The prefill cases are the linear layers of SmolLM2-135M (30 blocks, 576 wide, 9 and 3 heads of 64, 1,536 in the MLP) at
128 rows, and its head for the last row; attention itself, norms and rope are left out.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import native.blas
from bench import report

if TYPE_CHECKING:
    import mlx.core as mx

Weight = TypeVar("Weight")

CUBE = 1024
ROWS = 128
BLOCKS = 30
# (inputs, outputs) of q, k, v, o, gate, up, down.
SHAPES = ((576, 576), (576, 192), (576, 192), (576, 576), (576, 1536), (576, 1536), (1536, 576))
HEAD = (576, 49152)
BITS = 4
GROUP = 64
WARMUPS = 1
CHILD_TIMEOUT_S = 300

CASES = {
    "sgemm": f"float32 product of two {CUBE} x {CUBE} matrices",
    "matrix_vector": f"float32 product of a {HEAD[1]} x {HEAD[0]} matrix and a vector",
    "dense_prefill": f"float32 linear layers of SmolLM2-135M at {ROWS} rows",
    "quantized_prefill": f"the same layers, {BITS}-bit, by mx.quantized_matmul",
}
UNITS = {"sgemm": "GFLOP/s", "matrix_vector": "GB/s", "dense_prefill": "tokens/s", "quantized_prefill": "tokens/s"}
WORK = {
    "sgemm": 2 * CUBE**3 / 1e9,
    "matrix_vector": 4 * HEAD[0] * HEAD[1] / 1e9,
    "dense_prefill": ROWS,
    "quantized_prefill": ROWS,
}


def main() -> None:
    """Measure every case with and without, print the figures and write `bench/results/blas.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="processes for each case and BLAS")
    parser.add_argument("--repeats", type=int, default=3, help="samples in each process")
    parser.add_argument("--only", choices=sorted(CASES), help="measure one case and write no file")
    parser.add_argument("--measure", nargs=2, metavar=("CASE", "BLAS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        case, blas = arguments.measure
        print(json.dumps(measure(case, blas == "openblas", arguments.repeats)))
        return
    print(report.heading("What OpenBLAS does for MLX on this machine"))
    if arguments.only:
        compare(arguments.only, arguments.rounds, arguments.repeats)
        return
    results = [compare(case, arguments.rounds, arguments.repeats) for case in CASES]
    print("written:", report.write("blas", {"benchmark": "blas", "results": results}).relative_to(report.ROOT))


def compare(case: str, rounds: int, repeats: int) -> dict[str, Any]:
    """Run one case in fresh processes, alternating the BLAS, and print both figures."""
    print(f"\n{case}: {CASES[case]}")
    samples: dict[str, list[float]] = {"mlx": [], "openblas": []}
    info: dict[str, Any] | None = None
    for _ in range(rounds):
        for blas, collected in samples.items():
            found = _in_a_process(case, blas, repeats)
            collected.extend(WORK[case] / seconds for seconds in found["seconds"])
            info = found["blas"] or info
    summaries = {blas: report.summary(collected) for blas, collected in samples.items()}
    for blas, figures in summaries.items():
        print(f"  {blas:9}{report.spread(figures, UNITS[case])}")
    gain = summaries["openblas"]["median"] / summaries["mlx"]["median"]
    print(f"  {gain:.2f} times, with {info}")
    return {
        "case": case,
        "what": CASES[case],
        "unit": UNITS[case],
        "rounds": rounds,
        "openblas_info": info,
        "gain_of_medians": gain,
        **summaries,
    }


def _in_a_process(case: str, blas: str, repeats: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.blas", "--repeats", str(repeats), "--measure", case, blas]
    done = subprocess.run(
        command, cwd=report.ROOT, stdout=subprocess.PIPE, text=True, timeout=CHILD_TIMEOUT_S, check=True
    )
    return json.loads(done.stdout)


def measure(case: str, with_openblas: bool, repeats: int) -> dict[str, Any]:
    """Time one case in this process, which must not have imported MLX before.

    Returns:
        `seconds`, a list, and `blas`: what was loaded, or None.
    """
    info = native.blas.load() if with_openblas else None
    import mlx.core as mx

    mx.set_default_device(mx.cpu)
    mx.random.seed(0)
    makers: dict[str, Callable[[], Callable[[], mx.array]]] = {
        "sgemm": _sgemm,
        "matrix_vector": _matrix_vector,
        "dense_prefill": _dense_prefill,
        "quantized_prefill": _quantized_prefill,
    }
    run = makers[case]()
    seconds: list[float] = []
    for _ in range(WARMUPS + repeats):
        started = time.perf_counter()
        mx.eval(run())
        seconds.append(time.perf_counter() - started)
    blas = None if info is None else {"config": info.config, "core": info.core, "threads": info.threads}
    return {"seconds": seconds[WARMUPS:], "blas": blas}


def _sgemm() -> Callable[[], "mx.array"]:
    left, right = _random(CUBE, CUBE), _random(CUBE, CUBE)
    return lambda: left @ right


def _matrix_vector() -> Callable[[], "mx.array"]:
    matrix, vector = _random(HEAD[1], HEAD[0]), _random(HEAD[0])
    return lambda: matrix @ vector


def _dense_prefill() -> Callable[[], "mx.array"]:
    layers = [[_random(outputs, inputs) for inputs, outputs in SHAPES] for _ in range(BLOCKS)]
    head = _random(HEAD[1], HEAD[0])
    x = _random(ROWS, SHAPES[0][0])
    return lambda: _through(x, layers, head, lambda rows, weight: rows @ weight.T)


def _quantized_prefill() -> Callable[[], "mx.array"]:
    import mlx.core as mx

    def quantize(inputs: int, outputs: int) -> tuple[mx.array, ...]:
        packed = tuple(mx.quantize(_random(outputs, inputs), group_size=GROUP, bits=BITS))
        mx.eval(packed)
        return packed

    def multiply(rows: mx.array, weight: tuple[mx.array, ...]) -> mx.array:
        return mx.quantized_matmul(rows, *weight, transpose=True, group_size=GROUP, bits=BITS)

    layers = [[quantize(inputs, outputs) for inputs, outputs in SHAPES] for _ in range(BLOCKS)]
    head = quantize(*HEAD)
    x = _random(ROWS, SHAPES[0][0])
    return lambda: _through(x, layers, head, multiply)


def _through(
    x: "mx.array", layers: list[list[Weight]], head: Weight, multiply: Callable[["mx.array", Weight], "mx.array"]
) -> "mx.array":
    """Send rows through every linear layer in the order of the model, and the last row through the head."""
    for q, k, v, o, gate, up, down in layers:
        values = multiply(x, k) + multiply(x, v)
        attended = multiply(x, q)
        attended[:, : values.shape[1]] += values  # stands in for attention, so that no product is left out
        x = x + multiply(attended, o)
        x = x + multiply(multiply(x, gate) * multiply(x, up), down)
    return multiply(x[-1:], head)


def _random(*shape: int) -> "mx.array":
    import mlx.core as mx

    made = mx.random.normal(shape) * 0.02
    mx.eval(made)
    return made


if __name__ == "__main__":
    main()
