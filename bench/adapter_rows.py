"""Two ways to add adapters of mixed ranks to the rows of one step: rows grouped by adapter, or gathered factors.

Grouped, each adapter's rows are taken, multiplied with its own factors and put back. Gathered, the factors of all lie
in one stack, those of small ranks filled up with zeros, and each row picks its own: MLX's `gather_mm`. `kernel` is the
one operation of the CPU that groups rows (`native.low_rank`).

    python -m bench.adapter_rows [--inputs 576] [--outputs 1536] [--rounds 200]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import mlx.core as mx
import numpy as np

from models.layers.arithmetic import Arithmetic
from models.layers.low_rank import LowRankShare, chained
from models.layers.mlx_arithmetic import MlxArithmetic
from models.layers.mlx_low_rank import gathered, grouped
from models.layers.native_arithmetic import NativeArithmetic
from native import kernels

RANKS = (8, 4, 16, 8, 32, 8, 4, 16)
Add = Callable[[mx.array, mx.array], mx.array]


def shares_of(
    factors: list[tuple[mx.array, mx.array]], tokens: list[int], arithmetic: Arithmetic
) -> list[LowRankShare]:
    """Return what the tokens use, each its own adapter."""
    shares: list[LowRankShare] = []
    for number, (a, b) in enumerate(factors):
        own = tuple(place for place, used in enumerate(tokens) if used == number)
        if own:
            shares.append(LowRankShare(arithmetic.low_rank(a, b), 2.0, own))
    return shares


def time_of(add: Add, x: mx.array, y: mx.array, rounds: int) -> float:
    """Return the microseconds of one addition among many in a row, each of the one before: the best of five."""
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        total = y
        for _ in range(rounds):
            total = add(x, total)
        mx.eval(total)  # pyright: ignore[reportUnknownMemberType]
        best = min(best, time.perf_counter() - began)
    return best / rounds * 1e6


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=576)
    parser.add_argument("--outputs", type=int, default=1536)
    parser.add_argument("--rounds", type=int, default=100)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    dtype = mx.float32 if mx.default_device() == mx.cpu else mx.float16

    def numbers(*shape: int) -> mx.array:
        return mx.array(rng.normal(size=shape).astype(np.float32) * 0.02)

    factors = [(numbers(arguments.inputs, rank), numbers(rank, arguments.outputs)) for rank in RANKS]
    cases = {
        "16 rows, one adapter": [0] * 16,
        "16 rows, 8 adapters": [row % 8 for row in range(16)],
        "16 rows, 3 adapters": [row % 3 for row in range(16)],
        "512 tokens of 4 rows, 4 adapters": [token // 128 for token in range(512)],
    }
    print(f"{arguments.inputs} x {arguments.outputs}, ranks {RANKS}, {mx.default_device()}, µs for one layer")
    print(f"{'':36}{'grouped':>10}{'gathered':>10}{'kernel':>10}")
    for name, tokens in cases.items():
        x, y = numbers(1, len(tokens), arguments.inputs).astype(dtype), numbers(1, len(tokens), arguments.outputs)
        y = y.astype(dtype)
        shares = shares_of(factors, tokens, MlxArithmetic())
        ways: list[Add] = [chained([grouped(share) for share in shares]), gathered(shares)]
        if dtype == mx.float32 and kernels.is_available():
            ways.append(NativeArithmetic().low_rank_sum(shares_of(factors, tokens, NativeArithmetic())))
        rounds = arguments.rounds if len(tokens) < 100 else max(1, arguments.rounds // 5)
        times = [time_of(add, x, y, rounds) for add in ways]
        print(f"{name:36}" + "".join(f"{each:10.0f}" for each in times))


if __name__ == "__main__":
    main()
