"""Keys and values in blocks on the CPU, and attention over them.

As in `native.kernels`, an array is computed when it is evaluated, and what a row gives depends on that row alone.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import native

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    import mlx.core as mx

BLOCK_TOKENS = 32  # positions of a block


def kv_pool(num_blocks: int, num_layers: int, kv_heads: int, head_dim: int) -> mx.array:
    """Make a pool of blocks for keys and values.

    Its memory is taken from the system when it is first written to, in pages of up to 2 MiB, and is not part of MLX's
    count.

    Returns:
        float32 [num_blocks, num_layers, 2 (keys, values), kv_heads, BLOCK_TOKENS, head_dim], zeros.

    Raises:
        ShapeRejected: a dimension is less than 1 or too large.
        MemoryError: the system has no range of addresses so large.
        NativeError: the extension is not there or cannot be imported.
    """
    return _extension().kv_pool(num_blocks, num_layers, kv_heads, head_dim)


def release_blocks(pool: mx.array, block_ids: Sequence[int]) -> None:
    """Give the memory of blocks back to the system: every page that lies wholly within them.

    What the blocks hold is lost. No step that is under way may use them.

    Args:
        pool: what `kv_pool` made.
        block_ids: numbers of blocks, in any order.

    Raises:
        OperandRejected: there is no block of that number, or `pool` is none.
        NativeError: the extension is not there or cannot be imported.
    """
    _extension().release_blocks(pool, block_ids)


def attention(  # noqa: PLR0913, PLR0917 - a layer's state is three of these
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    cosines: mx.array | None,
    sines: mx.array | None,
    pool: mx.array,
    rows: mx.array,
    *,
    layer: int,
    scale: float,
    window: int = 0,
    interleaved: bool = False,
) -> mx.array:
    """Store the keys and values of new tokens in blocks, and let each token attend to its sequence up to itself.

    All keys of the step are stored before any token attends, in place: MLX does not know that `pool` changes, and what
    reads it must come later on the same stream. A token has the bits that `kernels.attention` gives it with the keys
    that it sees alone, in whatever step it comes and wherever its blocks lie.

    Args:
        queries: float32 [1, tokens, heads * head_dim], positions not yet applied; row-contiguous, as all others.
        keys: float32 [1, tokens, kv heads * head_dim], the same.
        values: float32 [1, tokens, kv heads * head_dim].
        cosines: float32 [tokens, half], as `kernels.rotate` takes them, 2 * half at most head_dim; None: no positions.
        sines: the same.
        pool: what `kv_pool` made.
        rows: int32 [sequences, 2 + blocks]: how many of the tokens are the sequence's, the position of the first of
            them, and its blocks by position. The tokens of the sequences follow one another. Blocks that no token
            sees are not looked at. No two tokens may stand at the same place of a block.
        layer: which layer of the pool.
        scale: multiplies the scores.
        window: how many positions a token sees, its own the last of them; 0: all up to its own.
        interleaved: turn neighbours, as `kernels.rotate` does.

    Returns:
        float32 [1, tokens, heads * head_dim]. Where `rows` has a block that the pool lacks, or other tokens than
        these, nothing is stored, the result is no numbers, and `kernels.take_failure` tells it.

    Raises:
        OperandRejected: an array does not fit the others; its layout may be found wrong only when it is evaluated.
        NativeError: the extension is not there or cannot be imported.

    Source: blocks of keys found by a table: Kwon et al. 2023, arXiv:2309.06180.
    """
    return _extension().paged_attention(
        queries, keys, values, cosines, sines, pool, rows, layer, scale, window, interleaved
    )


@functools.cache
def _extension() -> ModuleType:
    return native.extension()
