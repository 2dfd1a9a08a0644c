"""Arithmetic on the CPU that MLX does slowly: quantized matrices straight from their codes, and what joins them.

Every function makes an array as MLX's own do: computed when it is evaluated, on the CPU stream of the calling thread.
What they compute for a row depends on that row alone: it has the same bits whatever rows it comes with, and with any
number of threads. Between instruction sets the last bits differ.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import native
from native.errors import ExtensionUnloadable, InstructionSetMissing, NotBuilt

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType
    from typing import TypeAlias

    import mlx.core as mx

    Matrix: TypeAlias = tuple[mx.array, mx.array, mx.array]

BLOCK_TOKENS = 32  # positions of a block of keys and values
BITS = (2, 3, 4, 5, 6, 8)
GROUP_SIZES = (32, 64, 128)


def is_available() -> bool:
    """Tell whether the kernels can be called here; imports MLX to find out."""
    try:
        _extension()
    except (NotBuilt, ExtensionUnloadable):
        return False
    return True


def instruction_set() -> str:
    """Name the kernels in use: "avx512", "avx2", "neon" or "portable".

    Raises:
        NativeError: the extension is not there or cannot be imported.
    """
    return _extension().instruction_set()


def instruction_sets() -> list[str]:
    """Name the kernels that this processor can run, the best first: that one is in use unless another is chosen.

    Raises:
        NativeError: the extension is not there or cannot be imported.
    """
    return _extension().instruction_sets()


def choose_instruction_set(name: str) -> None:
    """Use other kernels from now on, for tests and comparisons. Wait for running ones first: a step must not mix them.

    Raises:
        InstructionSetMissing: it is not one of `instruction_sets()`.
        NativeError: the extension is not there or cannot be imported.
    """
    if not _extension().choose_instruction_set(name):
        raise InstructionSetMissing(name)


def threads() -> int:
    """Return how many threads share a kernel's work, at first as many as this process may use cores.

    Raises:
        NativeError: the extension is not there or cannot be imported.
    """
    return _extension().threads()


def set_threads(num_threads: int) -> None:
    """Change how many threads share a kernel's work; waits for a running kernel.

    Args:
        num_threads: the one that calls among them; less than 1 counts as 1.

    Raises:
        NativeError: the extension is not there or cannot be imported.
    """
    _extension().set_threads(max(1, num_threads))


def quantized_linear(  # noqa: PLR0913 - a matrix is five of these
    x: mx.array,
    codes: mx.array,
    scales: mx.array,
    biases: mx.array,
    group_size: int,
    bits: int,
    *,
    addend: mx.array | None = None,
) -> mx.array:
    """Multiply `x` with the transposed matrix that is packed in MLX's affine format.

    Within a group of columns, value = scale * code + bias. Values and products are float32; the result is within
    1e-5 of the exact one, measured against the sum of the products without their signs.

    Args:
        x: float32 [..., columns], any layout.
        codes: uint32 [rows, columns * bits / 32], row-contiguous.
        scales: float32, bfloat16 or float16 [rows, columns / group_size], row-contiguous.
        biases: the same.
        group_size: one of `GROUP_SIZES`.
        bits: one of `BITS`.
        addend: float32 [..., rows], any layout, added to the product: the bits of a sum of both, in less time.

    Returns:
        float32 [..., rows].

    Raises:
        QuantizationUnsupported: there is no kernel for these codes or groups.
        OperandRejected: an array does not fit the others; its layout may be found wrong only when it is evaluated.
        NativeError: the extension is not there or cannot be imported.
    """
    return _extension().quantized_linear(x, codes, scales, biases, group_size, bits, addend)


def quantized_linears(x: mx.array, matrices: Sequence[Matrix], group_size: int, bits: int) -> list[mx.array]:
    """Multiply `x` with several transposed matrices at once: the bits of `quantized_linear`, in less time.

    Args:
        x: float32 [..., columns], any layout.
        matrices: codes, scales and biases of each, as in `quantized_linear`; all have as many columns as `x`.
        group_size: one of `GROUP_SIZES`.
        bits: one of `BITS`.

    Returns:
        For each matrix, float32 [..., its rows].

    Raises:
        QuantizationUnsupported, OperandRejected, NativeError: as `quantized_linear`.
    """
    return _extension().quantized_linears(x, matrices, group_size, bits)


def quantized_swiglu(x: mx.array, gate: Matrix, up: Matrix, group_size: int, bits: int) -> mx.array:
    """Multiply `x` with two transposed matrices and join the products: the bits of `quantized_linear` and `swiglu`.

    Args:
        x: float32 [..., columns], any layout.
        gate: codes, scales and biases of the matrix whose product is gated, as in `quantized_linear`.
        up: those of the other, of the same shape.
        group_size: one of `GROUP_SIZES`.
        bits: one of `BITS`.

    Returns:
        float32 [..., rows].

    Raises:
        QuantizationUnsupported, OperandRejected, NativeError: as `quantized_linear`.
    """
    return _extension().quantized_swiglu(x, gate, up, group_size, bits)


def gather_quantized_linear(  # noqa: PLR0913 - a matrix is five of these
    x: mx.array, codes: mx.array, scales: mx.array, biases: mx.array, choices: mx.array, *, group_size: int, bits: int
) -> mx.array:
    """Multiply each row of `x` with the one of several matrices that it has chosen, as a layer of experts does.

    Rows with the same choice are multiplied together; each has the bits that `quantized_linear` gives it.

    Args:
        x: float32, any layout: [*choices, columns], a row for each choice, or [*choices without the last, columns],
            a row for each list of choices.
        codes: uint32 [matrices, rows, columns * bits / 32], row-contiguous.
        scales: float32, bfloat16 or float16 [matrices, rows, columns / group_size], row-contiguous.
        biases: the same.
        choices: integers [...], each at least 0 and less than the number of matrices.
        group_size: one of `GROUP_SIZES`.
        bits: one of `BITS`.

    Returns:
        float32 [*choices, rows].

    Raises:
        QuantizationUnsupported: there is no kernel for these codes or groups.
        OperandRejected: an array does not fit the others; its layout may be found wrong only when it is evaluated.
        RuntimeError: when the result is evaluated: there is no matrix of that number.
        NativeError: the extension is not there or cannot be imported.
    """
    return _extension().gather_quantized_linear(x, (codes, scales, biases), choices, group_size, bits)


def quantized_rows(
    codes: mx.array, scales: mx.array, biases: mx.array, indices: mx.array, group_size: int, bits: int
) -> mx.array:
    """Look up rows of a packed matrix, as an embedding does, without unpacking the rest.

    Args:
        codes: uint32 [rows, columns * bits / 32], row-contiguous.
        scales: float32, bfloat16 or float16 [rows, columns / group_size], row-contiguous.
        biases: the same.
        indices: integers [...], each at least 0 and less than the number of rows.
        group_size: one of `GROUP_SIZES`.
        bits: one of `BITS`.

    Returns:
        float32 [*indices, columns].

    Raises:
        QuantizationUnsupported: there is no kernel for these codes or groups.
        OperandRejected: an array does not fit the others; its layout may be found wrong only when it is evaluated.
        RuntimeError: when the result is evaluated: there is no row of that number.
        NativeError: the extension is not there or cannot be imported.
    """
    return _extension().quantized_rows(codes, scales, biases, indices, group_size, bits)


def rms_norm(x: mx.array, weight: mx.array, epsilon: float) -> mx.array:
    """Normalize rows by their root mean square: x / sqrt(mean(x * x) + epsilon) * weight.

    Args:
        x: float32 [..., width], any layout.
        weight: float32 [width], row-contiguous.
        epsilon: added to the mean.

    Returns:
        float32 of the shape of `x`.

    Raises:
        OperandRejected, NativeError: as `quantized_linear`.

    Source: Zhang and Sennrich 2019, arXiv:1910.07467.
    """
    return _extension().rms_norm(x, weight, epsilon)


def swiglu(gate: mx.array, up: mx.array) -> mx.array:
    """Join the halves of a gated layer: gate / (1 + exp(-gate)) * up.

    Args:
        gate: float32 [..., width], any layout.
        up: the same.

    Returns:
        float32 of that shape.

    Raises:
        OperandRejected, NativeError: as `quantized_linear`.

    Source: Shazeer 2020, arXiv:2002.05202.
    """
    return _extension().swiglu(gate, up)


def add(x: mx.array, addend: mx.array) -> mx.array:
    """Add two arrays, or one row to each of an array: the bits of MLX's sum.

    Args:
        x: float32 [..., width], any layout.
        addend: float32 of the shape of `x`, or [width].

    Returns:
        float32 of the shape of `x`.

    Raises:
        OperandRejected, NativeError: as `quantized_linear`.
    """
    return _extension().add(x, addend)


def angles(positions: mx.array, turns: mx.array, scale: float = 1.0) -> tuple[mx.array, mx.array]:
    """Find the cosines and sines of position * scale * turns[i] radians.

    Args:
        positions: int32 [tokens], row-contiguous.
        turns: float32 [half], row-contiguous: radians that a token adds for each pair.
        scale: multiplies the positions.

    Returns:
        Cosines and sines, float32 [tokens, half] both: what `rotate` takes.

    Raises:
        OperandRejected, NativeError: as `quantized_linear`.
    """
    return _extension().angles(positions, turns, scale)


def rotate(x: mx.array, cosines: mx.array, sines: mx.array, *, interleaved: bool = False) -> mx.array:
    """Turn the pairs (x[i], x[i + half]) by the angles of their positions; what lies behind the pairs stays.

    Args:
        x: float32 [batches, heads, tokens, width], any layout, `width` at least twice `half`.
        cosines: float32 [tokens, half] or [batches, tokens, half], any layout: computed once for all layers of a step.
        sines: the same.
        interleaved: turn the neighbours (x[2 * i], x[2 * i + 1]) instead.

    Returns:
        float32 of the shape of `x`.

    Raises:
        OperandRejected, NativeError: as `quantized_linear`.

    Source: Su et al. 2021, arXiv:2104.09864; halves instead of neighbours as Hugging Face checkpoints have them.
    """
    return _extension().rotate(x, cosines, sines, interleaved)


def attention(queries: mx.array, keys: mx.array, values: mx.array, scale: float, *, is_causal: bool) -> mx.array:
    """Let queries attend to keys and values by the softmax of scaled scores.

    The sums of a query go over the keys that it sees in their order, so a query has the same bits in a chunk of any
    size. Query head h reads head h // (heads / kv heads).

    Args:
        queries: float32 [batches, heads, queries, width]; elements of a row side by side, otherwise any layout.
        keys: float32 [batches, kv heads, keys, width]; the same, so that slices of a cache are read in place.
        values: the same.
        scale: multiplies the scores.
        is_causal: the last query stands at the last key, and no query sees a key behind its own place.

    Returns:
        float32 [batches, queries, heads, width]: the heads of a query side by side, ready for the next product.

    Raises:
        OperandRejected, NativeError: as `quantized_linear`.

    Source: Vaswani et al. 2017, arXiv:1706.03762; heads that share keys: Ainslie et al. 2023, arXiv:2305.13245.
    """
    return _extension().attention(queries, keys, values, scale, is_causal)


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


def paged_attention(  # noqa: PLR0913, PLR0917 - a layer's state is three of these
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
    reads it must come later on the same stream. A token has the bits that `attention` gives it with the keys that it
    sees alone, in whatever step it comes and wherever its blocks lie.

    Args:
        queries: float32 [1, tokens, heads * head_dim], positions not yet applied; row-contiguous, as all others.
        keys: float32 [1, tokens, kv heads * head_dim], the same.
        values: float32 [1, tokens, kv heads * head_dim].
        cosines: float32 [tokens, half], as `rotate` takes them, 2 * half at most head_dim; None: no positions.
        sines: the same.
        pool: what `kv_pool` made.
        rows: int32 [sequences, 2 + blocks]: how many of the tokens are the sequence's, the position of the first of
            them, and its blocks by position. The tokens of the sequences follow one another. Blocks that no token
            sees are not looked at. No two tokens may stand at the same place of a block.
        layer: which layer of the pool.
        scale: multiplies the scores.
        window: how many positions a token sees, its own the last of them; 0: all up to its own.
        interleaved: turn neighbours, as `rotate` does.

    Returns:
        float32 [1, tokens, heads * head_dim].

    Raises:
        OperandRejected: an array does not fit the others; its layout may be found wrong only when it is evaluated.
        RuntimeError: when the result is evaluated: `rows` has a block that the pool lacks, or other tokens than these.
            Nothing was stored then.
        NativeError: the extension is not there or cannot be imported.

    Source: blocks of keys found by a table: Kwon et al. 2023, arXiv:2309.06180.
    """
    return _extension().paged_attention(
        queries, keys, values, cosines, sines, pool, rows, layer, scale, window, interleaved
    )


@functools.cache
def _extension() -> ModuleType:
    return native.extension()
