"""The compiled part of `native`; import that instead."""

from collections.abc import Sequence
import os

import mlx.core


def round_trip(source: mlx.core.array) -> mlx.core.array:
    """Build an array anew from what C++ sees of another."""

def mapping_kind() -> str:
    """Say what `map_array` does with the MLX library at hand."""

def map_array(path: str | os.PathLike, offset: int, shape: Sequence[int], dtype: mlx.core.Dtype) -> mlx.core.array:
    """Make an array whose elements are a range of a file."""
