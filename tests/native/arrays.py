"""What tests of kernels are made of: random arrays, and comparisons of them."""

import mlx.core as mx
import numpy as np

from native import kernels

# Of instructions that this processor has, the best first.
EVERY_SET = kernels.instruction_sets() if kernels.is_available() else []


def normal(*shape: int, seed: int = 1) -> mx.array:
    return mx.array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def equal_bits(left: mx.array, right: mx.array) -> bool:
    return bool(mx.array_equal(left.view(mx.uint32), right.view(mx.uint32)))
