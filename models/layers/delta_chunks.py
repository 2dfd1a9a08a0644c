"""The gated delta rule for many tokens at once, by products of matrices: for devices that our own kernel is not for.

Within a chunk of L tokens, what each takes into the memory depends on what those before it took: a triangular system,
solved for all chunks together. With G the sums of the logarithms of what is left, and S the memory before the chunk:

    (1 + A) U = beta (V - e^G K S^T),   A[i, j] = beta_i e^(G_i - G_j) k_i k_j  for j < i
    Y = e^G Q S^T + (Q K^T e^(G_i - G_j) for j <= i) U
    S' = e^(G_L) S + (e^(G_L - G) U)^T K

Sums run in another order than token by token: the last bits depend on how tokens are cut.
Source: Yang et al. 2024, arXiv:2406.06484 and arXiv:2412.06464.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from models.blocks import BLOCK_TOKENS

# A power of two: states are wanted at the ends of blocks.
_CHUNK_TOKENS = BLOCK_TOKENS


def walk_in_chunks(
    heads: tuple[mx.array, mx.array, mx.array],
    decay_logs: mx.array,
    weights: mx.array,
    pieces: Sequence[int],
    memory: mx.array,
) -> tuple[mx.array, list[mx.array]]:
    """Go through the tokens of rows that are cut alike.

    Args:
        heads: queries and keys [B, T, H, D_k], of the right lengths, and values [B, T, H, D_v].
        decay_logs: [B, T, H]: logarithms of what is left of the memory.
        weights: [B, T, H]: how much is taken in of what is missing.
        pieces: how many tokens come before each memory that is wanted; together T.
        memory: before the first token, float32 [B, H, D_v, D_k].

    Returns:
        [B, T, H, D_v] in the dtype of the queries, and the memory after each piece.
    """
    chunks, ends = _chunks_of(pieces)
    queries, keys, values, logs, weights = (_cut(x, chunks) for x in (*heads, decay_logs, weights))
    sums = mx.cumsum(logs, axis=-1)
    shares = mx.exp(mx.where(_lower(0), sums[..., :, None] - sums[..., None, :], -mx.inf))  # [B, H, n, L, L]
    alike = keys @ mx.swapaxes(keys, -1, -2)
    solved = _inverse_of_one_and(mx.where(_lower(1), weights[..., None] * shares * alike, 0.0))
    own = solved @ (weights[..., None] * values)
    known = solved @ ((weights * mx.exp(sums))[..., None] * keys)
    scores = (queries @ mx.swapaxes(keys, -1, -2)) * shares
    queries = mx.exp(sums)[..., None] * queries
    left = mx.exp(sums[..., -1:] - sums)[..., None] * keys
    found: list[mx.array] = []
    memories: list[mx.array] = []
    for number, (_, count) in enumerate(chunks):
        seen = mx.swapaxes(memory, -1, -2)  # [B, H, D_k, D_v]
        taken = own[:, :, number] - known[:, :, number] @ seen  # [B, H, L, D_v]
        found.append((queries[:, :, number] @ seen + scores[:, :, number] @ taken)[:, :, :count])
        kept = mx.exp(sums[:, :, number, -1])[..., None, None] * memory
        memory = kept + mx.swapaxes(taken, -1, -2) @ left[:, :, number]
        if number in ends:
            memories.append(memory)
    return mx.swapaxes(mx.concatenate(found, axis=2), 1, 2).astype(heads[0].dtype), memories


def _chunks_of(pieces: Sequence[int]) -> tuple[list[tuple[int, int]], frozenset[int]]:
    """Return where chunks begin and how many tokens each has, and the numbers of the last ones of pieces."""
    chunks: list[tuple[int, int]] = []
    ends: list[int] = []
    start = 0
    for piece in pieces:
        chunks.extend((start + done, min(_CHUNK_TOKENS, piece - done)) for done in range(0, piece, _CHUNK_TOKENS))
        ends.append(len(chunks) - 1)
        start += piece
    return chunks, frozenset(ends)


def _cut(x: mx.array, chunks: Sequence[tuple[int, int]]) -> mx.array:
    """Return [B, T, H, ...] as float32 [B, H, n, L, ...]; a chunk of fewer tokens ends in zeros, which do nothing."""
    if any(count < _CHUNK_TOKENS for _, count in chunks):
        padding = [(0, 0)] * x.ndim
        padding[1] = (0, 1)
        rest = x.shape[1]
        places = [start + token if token < count else rest for start, count in chunks for token in range(_CHUNK_TOKENS)]
        x = mx.take(mx.pad(x, padding), mx.array(places), axis=1)
    x = mx.unflatten(x.astype(mx.float32), 1, (len(chunks), _CHUNK_TOKENS))  # [B, n, L, H, ...]
    return mx.moveaxis(x, 3, 1)


def _lower(first: int) -> mx.array:
    """Return bool [L, L]: whether a row's number is over its column's by `first` or more."""
    numbers = mx.arange(_CHUNK_TOKENS)
    return numbers[:, None] - numbers[None] >= first


def _inverse_of_one_and(below: mx.array) -> mx.array:
    """Return (1 + A)^-1 of A [..., L, L] that is 0 but below its diagonal.

    The inverse of blocks twice as large is that of both and a product of both with what stands between: as stable as to
    solve row by row.
    """
    numbers = mx.arange(_CHUNK_TOKENS)
    inverse = mx.eye(_CHUNK_TOKENS)
    size = 1
    while size < _CHUNK_TOKENS:
        block = numbers // size
        between = (block[:, None] == block[None] + 1) & (block[:, None] % 2 == 1)
        inverse = inverse - inverse @ mx.where(between, below, 0.0) @ inverse
        size *= 2
    return inverse
