"""Low-rank products of the rows of a step by MLX's operations.

Where rows use different adapters, factors are gathered for few tokens, as of a step that decodes, and tokens are
grouped for many, as of prompts. Measured on the CPU (`bench/adapter_rows.py`, µs for a layer): 16 rows of 8 adapters
975 gathered and 1,381 grouped, 512 tokens of 4 adapters 17,850 and 6,001.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from models.layers.low_rank import Addition, LowRankShare, chained, disjoint_runs

MAX_GATHERED_TOKENS = 64


def low_rank_sum(shares: Sequence[LowRankShare]) -> Addition:
    """Return what adds the products of each share to its tokens."""
    return chained([addition for run in disjoint_runs(shares) for addition in _additions(run)])


def gathered(shares: Sequence[LowRankShare]) -> Addition:
    """Return what adds products for which each token picks its factors from a stack; no token has two.

    Args:
        shares: each of some tokens. The stacks are copies, with zeros behind smaller ranks.
    """
    rank = max(share.matrices.up.shape[0] for share in shares)
    dtypes = {array.dtype for share in shares for array in (share.matrices.down, share.matrices.up)}
    dtype = dtypes.pop() if len(dtypes) == 1 else mx.float32
    down = mx.stack([_filled(share.matrices.down, 1, rank).astype(dtype) for share in shares])
    up = mx.stack([_filled(share.matrices.up, 0, rank).astype(dtype) for share in shares])
    tokens = [token for share in shares for token in share.tokens or ()]
    numbers = [number for number, share in enumerate(shares) for _ in share.tokens or ()]
    places, indices = mx.array(tokens, dtype=mx.int32), mx.array(numbers, dtype=mx.uint32)
    scales = mx.array([shares[number].scale for number in numbers], dtype=mx.float32)[:, None]
    mx.eval(down, up, places, indices, scales)  # pyright: ignore[reportUnknownMemberType]

    def add(x: mx.array, y: mx.array) -> mx.array:
        rows = mx.expand_dims(x[0, places], 1)  # [1, N, inputs] -> [M, 1, inputs]
        z = mx.gather_mm(rows, down, rhs_indices=indices, sorted_indices=True)
        z = mx.squeeze(mx.gather_mm(z, up, rhs_indices=indices, sorted_indices=True), 1)  # [M, outputs]
        residual = (scales * z).astype(x.dtype)
        return y.at[:, places].add(residual[None])  # pyright: ignore[reportUnknownMemberType]

    return add


def grouped(share: LowRankShare) -> Addition:
    """Return what adds to a share's tokens as mlx-lm's layer does, which is trained behind that cast."""
    down, up, scale, tokens = share.matrices.down, share.matrices.up, share.scale, share.tokens

    def residual(x: mx.array) -> mx.array:
        return (scale * ((x @ down) @ up)).astype(x.dtype)

    if tokens is None:
        return lambda x, y: y + residual(x)
    is_span = tokens == tuple(range(tokens[0], tokens[0] + len(tokens)))
    chosen = slice(tokens[0], tokens[0] + len(tokens)) if is_span else mx.array(tokens, dtype=mx.int32)

    def add(x: mx.array, y: mx.array) -> mx.array:
        return y.at[:, chosen].add(residual(x[:, chosen]))  # pyright: ignore[reportUnknownMemberType]

    return add


def _additions(run: Sequence[LowRankShare]) -> list[Addition]:
    num_tokens = sum(len(share.tokens or ()) for share in run)
    if len(run) > 1 and num_tokens <= MAX_GATHERED_TOKENS:
        return [gathered(run)]
    return [grouped(share) for share in run]


def _filled(matrix: mx.array, axis: int, size: int) -> mx.array:
    """Return a matrix with zeros up to a size."""
    missing = size - matrix.shape[axis]
    return mx.pad(matrix, [(0, missing if each == axis else 0) for each in range(2)]) if missing else matrix
