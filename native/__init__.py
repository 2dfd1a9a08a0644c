"""The Python face of what is written in C++: arrays over mapped files, and a place for the kernels that MLX lacks.

Importing this package, or `native.blas`, does not import MLX: on Linux the BLAS must be loaded first. The extension
`native._native` is imported when one of the functions here is first called.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Literal, TypeAlias

from native.errors import (
    ExtensionUnloadable,
    FileUnreadable,
    MappingError,
    NativeError,
    NotBuilt,
    OffsetMisaligned,
    RangeOutsideFile,
    ShapeRejected,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from types import ModuleType

    import mlx.core as mx

__all__ = [
    "ExtensionUnloadable",
    "FileUnreadable",
    "MappingError",
    "MappingKind",
    "NativeError",
    "NotBuilt",
    "OffsetMisaligned",
    "RangeOutsideFile",
    "ShapeRejected",
    "end_on_lost_pages",
    "extension",
    "is_built",
    "map_array",
    "mapping_kind",
    "release_freed",
    "round_trip",
]

MappingKind: TypeAlias = Literal["in_place", "whole_pages_in_place", "copied"]


def is_built() -> bool:
    """Tell whether this install has the compiled extension, without importing it."""
    return importlib.util.find_spec("native._native") is not None


def release_freed() -> None:
    """Give memory that was freed back to the system, as far as C's allocator can; nothing without the extension.

    It takes some milliseconds, so it is for moments in which nobody waits.
    """
    if is_built():
        extension().release_freed()


def round_trip(source: mx.array) -> mx.array:
    """Build an array anew from what C++ sees of another: shape, dtype and bytes.

    The extension and MLX agree by being built alike, and by nothing else; a difference shows only when an array
    crosses. Equal values here mean that it does cross.

    Args:
        source: any shape, dtype and layout; evaluated here.

    Returns:
        A row-contiguous copy.

    Raises:
        NativeError: the extension is not there or cannot be imported.
        TypeError: `source` is no array, or the extension was built by another nanobind than MLX.
    """
    return extension().round_trip(source)


def mapping_kind() -> MappingKind:
    """Say what `map_array` does with the MLX library at hand.

    Returns:
        "in_place" (CPU): the memory of the array is the mapping, at every offset.
        "whole_pages_in_place" (Metal): so where the range begins on a page; MLX copies the rest.
        "copied" (CUDA): MLX copies each range when the array is made.

    Raises:
        NativeError: the extension is not there or cannot be imported.
    """
    return extension().mapping_kind()


def map_array(path: str | os.PathLike[str], offset: int, shape: Sequence[int], dtype: mx.Dtype) -> mx.array:
    """Make an array whose elements are a range of a file.

    In place, nothing is read before an element is used, and the pages are the system's cache, not MLX's active memory.
    The mapping is read-only: MLX never writes to such an array, but a write through a NumPy view that shares its memory
    ends the process. The file may be closed or unlinked while arrays on it live; it must not be truncated, see
    `end_on_lost_pages`.

    Args:
        path: a regular file.
        offset: where the range begins, in bytes: a multiple of the element size, and at least 8, because MLX's CPU
            allocator looks for a buffer's size in the word before it.
        shape: the dimensions; the file has the elements in row order, in this machine's byte order.
        dtype: what an element is.

    Returns:
        An array of `shape` and `dtype`.

    Raises:
        FileUnreadable: the file cannot be opened or mapped, or is no regular file.
        RangeOutsideFile: the range does not lie within the file, or begins in its first 8 bytes.
        OffsetMisaligned: `offset` is no multiple of the element size.
        ShapeRejected: a dimension is negative or too large.
        NativeError: the extension is not there or cannot be imported.
    """
    return extension().map_array(path, offset, list(shape), dtype)


def end_on_lost_pages(last_words: str, exit_code: int) -> bool:
    """End this process in an orderly way when a page of a mapped array cannot be read any more.

    That is so where its file became shorter, or its disk failed: the system sends SIGBUS, of which a process dies
    without a word. From now on it writes `last_words` to standard error and exits. A SIGBUS for another reason does
    what it did before. Only the first call of a process counts.

    Args:
        last_words: a line without its end, at most 1,000 bytes of UTF-8.
        exit_code: of the process.

    Returns:
        Whether the system took it.

    Raises:
        NativeError: the extension is not there or cannot be imported.
    """
    return extension().end_on_lost_pages(last_words, exit_code)


def extension() -> ModuleType:
    """Import the compiled extension, and MLX before it.

    Raises:
        NotBuilt: this install has none.
        ExtensionUnloadable: it cannot be imported beside the installed MLX.
    """
    if not is_built():
        raise NotBuilt
    try:
        importlib.import_module("mlx.core")  # brings libmlx, wherever it is installed
        return importlib.import_module("native._native")
    except ImportError as error:
        raise ExtensionUnloadable from error
