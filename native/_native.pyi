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

def end_on_lost_pages(last_words: str, exit_code: int) -> bool:
    """End the process in an orderly way when a mapped page cannot be read."""

def quantized_linear(x: mlx.core.array, codes: mlx.core.array, scales: mlx.core.array, biases: mlx.core.array, group_size: int, bits: int, addend: mlx.core.array | None = None) -> mlx.core.array:
    """Multiply rows with a quantized matrix, transposed."""

def quantized_linears(x: mlx.core.array, matrices: Sequence[tuple[mlx.core.array, mlx.core.array, mlx.core.array]], group_size: int, bits: int) -> list[mlx.core.array]:
    """Multiply rows with several quantized matrices, transposed."""

def quantized_swiglu(x: mlx.core.array, gate: tuple[mlx.core.array, mlx.core.array, mlx.core.array], up: tuple[mlx.core.array, mlx.core.array, mlx.core.array], group_size: int, bits: int) -> mlx.core.array:
    """
    Multiply rows with two quantized matrices, transposed, and join the products.
    """

def gather_quantized_linear(x: mlx.core.array, matrices: tuple[mlx.core.array, mlx.core.array, mlx.core.array], choices: mlx.core.array, group_size: int, bits: int) -> mlx.core.array:
    """Multiply each row with the quantized matrix of its choice, transposed."""

def quantized_rows(codes: mlx.core.array, scales: mlx.core.array, biases: mlx.core.array, indices: mlx.core.array, group_size: int, bits: int) -> mlx.core.array:
    """Look up rows of a quantized matrix."""

def linear(x: mlx.core.array, weight: mlx.core.array, addend: mlx.core.array | None = None) -> mlx.core.array:
    """Multiply rows with a matrix, transposed."""

def linears(x: mlx.core.array, weights: Sequence[mlx.core.array]) -> list[mlx.core.array]:
    """Multiply rows with several matrices, transposed."""

def linear_swiglu(x: mlx.core.array, gate: mlx.core.array, up: mlx.core.array) -> mlx.core.array:
    """Multiply rows with two matrices, transposed, and join the products."""

def rows(weight: mlx.core.array, indices: mlx.core.array) -> mlx.core.array:
    """Look up rows of a matrix."""

def add_low_rank(x: mlx.core.array, addend: mlx.core.array, matrices: Sequence[tuple[mlx.core.array, mlx.core.array]], scales: Sequence[float], rows: Sequence[Sequence[int] | None]) -> mlx.core.array:
    """Add to each row its product with two narrow matrices."""

def rms_norm(x: mlx.core.array, weight: mlx.core.array, epsilon: float) -> mlx.core.array:
    """Normalize rows by their root mean square."""

def layer_norm(x: mlx.core.array, weight: mlx.core.array, bias: mlx.core.array, epsilon: float) -> mlx.core.array:
    """Normalize rows to mean 0 and variance 1."""

def gelu(x: mlx.core.array) -> mlx.core.array:
    """Weigh each number by the normal distribution function of it."""

def full_attention(queries: mlx.core.array, keys: mlx.core.array, values: mlx.core.array, num_heads: int, scale: float) -> mlx.core.array:
    """Let every query see every key."""

def head_attention(queries: mlx.core.array, keys: mlx.core.array, values: mlx.core.array, num_heads: int, scale: float, is_causal: bool) -> mlx.core.array:
    """Let queries see keys, heads side by side."""

def swiglu(gate: mlx.core.array, up: mlx.core.array) -> mlx.core.array:
    """Join the two halves of a gated layer."""

def add(x: mlx.core.array, addend: mlx.core.array) -> mlx.core.array:
    """Add rows, or one row to each."""

def angles(positions: mlx.core.array, turns: mlx.core.array, scale: float) -> tuple[mlx.core.array, mlx.core.array]:
    """Find the cosines and sines of positions."""

def rotate(x: mlx.core.array, cosines: mlx.core.array, sines: mlx.core.array, interleaved: bool = False) -> mlx.core.array:
    """Turn pairs of elements by angles."""

def attention(queries: mlx.core.array, keys: mlx.core.array, values: mlx.core.array, scale: float, is_causal: bool) -> mlx.core.array:
    """Attend to keys and values."""

def geglu(gate: mlx.core.array, up: mlx.core.array) -> mlx.core.array:
    """Join the two halves of a layer that is gated by a gelu."""

def multiply(x: mlx.core.array, factor: mlx.core.array) -> mlx.core.array:
    """Multiply element by element."""

def columns(x: mlx.core.array, begin: int, count: int) -> mlx.core.array:
    """Take columns that lie next to one another."""

def soft_bound(x: mlx.core.array, bound: float) -> mlx.core.array:
    """Keep elements within a bound."""

def choose_experts(logits: mlx.core.array, num_chosen: int, is_of_all: bool, scale: mlx.core.array | None = None) -> tuple[mlx.core.array, mlx.core.array]:
    """Choose the experts of the largest logits."""

def mix(answers: mlx.core.array, shares: mlx.core.array) -> mlx.core.array:
    """Sum answers by their shares."""

def sigmoid_gate(x: mlx.core.array, gate: mlx.core.array) -> mlx.core.array:
    """Multiply with the sigmoid of a gate."""

def gather_linear(x: mlx.core.array, weights: mlx.core.array, choices: mlx.core.array) -> mlx.core.array:
    """Multiply each row with the matrix of its choice, transposed."""

def gather_gated(x: mlx.core.array, gate: mlx.core.array, up: mlx.core.array, choices: mlx.core.array, is_gelu: bool) -> mlx.core.array:
    """
    Multiply each row with two matrices of its choice, transposed, and join the products.
    """

def gather_quantized_gated(x: mlx.core.array, gate: tuple[mlx.core.array, mlx.core.array, mlx.core.array], up: tuple[mlx.core.array, mlx.core.array, mlx.core.array], choices: mlx.core.array, group_size: int, bits: int, is_gelu: bool) -> mlx.core.array:
    """
    Multiply each row with two quantized matrices of its choice, transposed, and join the products.
    """

def kv_pool(num_blocks: int, num_layers: int, kv_heads: int, head_dim: int) -> mlx.core.array:
    """Make a pool of blocks for keys and values."""

def release_freed() -> None:
    """Give freed memory back to the system."""

def release_blocks(pool: mlx.core.array, block_ids: Sequence[int]) -> None:
    """Give the memory of blocks back to the system."""

def paged_attention(queries: mlx.core.array, keys: mlx.core.array, values: mlx.core.array, cosines: mlx.core.array | None, sines: mlx.core.array | None, pool: mlx.core.array, rows: mlx.core.array, layer: int, scale: float, window: int, interleaved: bool) -> mlx.core.array:
    """Store keys and values in blocks, and attend to them."""

def draw(logits: mlx.core.array, choices: mlx.core.array, exempt_ids: mlx.core.array) -> tuple[mlx.core.array, mlx.core.array]:
    """Draw a token from each row of logits."""

def top(logits: mlx.core.array, count: int) -> tuple[mlx.core.array, mlx.core.array]:
    """Find the largest logits of each row."""

def restrict(logits: mlx.core.array, masks: mlx.core.array) -> mlx.core.array:
    """Make minus infinity of what masks forbid."""

class Program:
    """What computes some arrays of others, as one operation."""

    def __init__(self, inputs: Sequence[mlx.core.array], outputs: Sequence[mlx.core.array], dimensions: Sequence[Sequence[str | None]]) -> None:
        """Record what computes the outputs of the inputs."""

    def __call__(self, inputs: Sequence[mlx.core.array]) -> list[mlx.core.array]:
        """Compute the same of other inputs."""

def gated_delta(mixed: mlx.core.array, decays: mlx.core.array, corrections: mlx.core.array, convolution: mlx.core.array, decay_rates: mlx.core.array, decay_biases: mlx.core.array, states: Sequence[tuple[mlx.core.array, mlx.core.array]], pieces: Sequence[Sequence[int]]) -> list[mlx.core.array]:
    """Go through the tokens of some rows by the gated delta rule."""

def take_failure() -> str | None:
    """Return what went wrong in a kernel since the last call."""

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

class Slab:
    """Slots that hold arrays which are read from files."""

    def __init__(self, num_slots: int, num_threads: int, bypasses_cache: bool) -> None:
        """Make slots without a region."""

    def add_region(self, shape: Sequence[int], dtype: mlx.core.Dtype) -> int:
        """Add a region and return its number."""

    def array(self, region: int) -> mlx.core.array:
        """Return the array of a region."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all regions, and those that are read through."""

    def open(self, path: str | os.PathLike) -> int:
        """Open a file and return its number."""

    def fill(self, slot: int, reads: Sequence[Sequence[tuple[int, int, int, int, str]]]) -> int:
        """Have a slot filled, and return the generation of that."""

    def wait(self, slot: int, generation: int, longest_ms: int) -> tuple[str, int]:
        """Wait until a slot is filled."""

    def lease(self, slot: int, generation: int) -> None:
        """Keep what a slot holds."""

    def release(self, slot: int, generation: int) -> None:
        """Keep it no longer."""

    def cancel(self, slot: int, generation: int) -> None:
        """Give a filling up."""

    def state(self, slot: int) -> str:
        """Say what a slot is."""

    def close(self) -> None:
        """Give everything up and end the threads."""
