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

def quantized_linear(x: mlx.core.array, codes: mlx.core.array, scales: mlx.core.array, biases: mlx.core.array, group_size: int, bits: int) -> mlx.core.array:
    """Multiply rows with a quantized matrix, transposed."""

def gather_quantized_linear(x: mlx.core.array, codes: mlx.core.array, scales: mlx.core.array, biases: mlx.core.array, choices: mlx.core.array, group_size: int, bits: int) -> mlx.core.array:
    """Multiply each row with the quantized matrix of its choice, transposed."""

def quantized_rows(codes: mlx.core.array, scales: mlx.core.array, biases: mlx.core.array, indices: mlx.core.array, group_size: int, bits: int) -> mlx.core.array:
    """Look up rows of a quantized matrix."""

def instruction_set() -> str:
    """Name the instruction set that the kernels use."""

def instruction_sets() -> list[str]:
    """Name the instruction sets that this processor runs, the best first."""

def choose_instruction_set(name: str) -> bool:
    """Use an instruction set, and tell whether there is one of that name."""

def threads() -> int:
    """Return the number of threads that work on a kernel."""

def set_threads(num_threads: int) -> None:
    """Set the number of threads that work on a kernel, 1 or more."""
