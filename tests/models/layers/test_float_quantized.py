"""Weights packed as small floats, with and without a scale for the whole matrix."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from models.checkpoint.checkpoint import open_checkpoint
from models.checkpoint.errors import CheckpointCorrupt, CheckpointError, CheckpointRejected
from models.checkpoint.weights import Weights
from models.layers.expert_stacks import ExpertStacks
from models.layers.float_quantized import FloatLinear
from models.layers.mlx_arithmetic import MlxArithmetic
from models.layers.native_arithmetic import NativeArithmetic
from models.layers.quantized import FloatMatrix
from models.registry import load
from models.step import NumericPath
from native import kernels
from tests.models.families import FLOATS
from tests.support.tiny_models import write_llama, write_tensors

UP, EMBEDDING = "model.layers.0.mlp.up_proj", "model.embed_tokens"
# Its groups' scales would be under the smallest float of 8 bits, and the weights all zero.
SMALL = 1e-6
EXPERTS = ((128, 64), (128, 64), (64, 128))
SIZES = {UP: (128, 64), EMBEDDING: (288, 64)}


def scaled(folder: Path, change: dict[str, mx.array] | None = None) -> Path:
    """Write a checkpoint of which two matrices are small and have a scale of their own."""
    write_llama(folder, quantization=FLOATS["nvfp4"])
    stored: Any = mx.load(str(folder / "model.safetensors"))
    tensors: dict[str, mx.array] = dict(stored)
    for module, weight in small_weights().items():
        largest = mx.abs(weight).max()
        codes, scales = mx.quantize(weight, mode="nvfp4", global_scale=largest)[:2]
        tensors |= {f"{module}.weight": codes, f"{module}.scales": scales, f"{module}.global_scale": largest}
    tensors |= change or {}
    mx.eval(tensors)
    write_tensors(folder, tensors)
    return folder


def small_weights() -> dict[str, mx.array]:
    mx.random.seed(3)
    return {module: SMALL * mx.random.normal(shape) for module, shape in SIZES.items()}


def worst_share(found: mx.array, expected: mx.array) -> float:
    difference = np.abs(np.array(found) - np.array(expected)).max()
    return float(difference / np.abs(np.array(expected)).max())


@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_matrix_s_own_scale_is_applied(tmp_path: Path, shape: tuple[int, ...]) -> None:
    weight = small_weights()[UP]
    change = {f"{UP}.global_scale": mx.abs(weight).max().reshape(shape)}
    weights = Weights(open_checkpoint(scaled(tmp_path / "tiny", change)), mx.float32)
    layer = weights.linear(UP, *SIZES[UP])
    assert isinstance(layer, FloatLinear)
    assert layer.weight.global_scale is not None
    x = mx.random.normal((1, 3, 64))
    matrix = layer.weight
    stored = mx.dequantize(matrix.codes, matrix.scales, mode="nvfp4", global_scale=matrix.global_scale, dtype=x.dtype)
    assert worst_share(layer(x, None), x @ stored.T) < 1e-5
    assert worst_share(stored, weight) < 0.15
    assert weights.nbytes == matrix.codes.nbytes + matrix.scales.nbytes + 4


def test_an_embedding_s_own_scale_is_applied(tmp_path: Path) -> None:
    weights = Weights(open_checkpoint(scaled(tmp_path / "tiny")), mx.float32)
    embedding = weights.embedding(EMBEDDING, *SIZES[EMBEDDING])
    tokens = mx.array([[5, 0, 287]])
    assert worst_share(embedding(tokens), small_weights()[EMBEDDING][tokens]) < 0.15


def test_a_product_keeps_its_dtype(tmp_path: Path) -> None:
    layer = Weights(open_checkpoint(scaled(tmp_path / "tiny")), mx.bfloat16).linear(UP, *SIZES[UP])
    assert layer(mx.ones((1, 2, 64), mx.bfloat16), None).dtype == mx.bfloat16


@pytest.mark.parametrize(
    ("changed", "error", "problem"),
    [
        (mx.ones((2,)), CheckpointCorrupt, "has shape 2, not no dimensions"),
        (mx.array(1, mx.uint8), CheckpointRejected, "is of U8, and no scheme says how that is read"),
    ],
)
def test_another_scale_is_refused_by_name(
    tmp_path: Path, changed: mx.array, error: type[CheckpointError], problem: str
) -> None:
    weights = Weights(open_checkpoint(scaled(tmp_path / "tiny", {f"{UP}.global_scale": changed})), mx.float32)
    with pytest.raises(error) as caught:
        weights.linear(UP, *SIZES[UP])
    assert (caught.value.file, caught.value.key) == ("model.safetensors", f"{UP}.global_scale")
    assert caught.value.problem == problem


def test_modes_without_such_a_scale_leave_it_over(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "tiny", quantization=FLOATS["mxfp8"])
    stored: Any = mx.load(str(folder / "model.safetensors"))
    tensors = {**stored, f"{UP}.global_scale": mx.array(1.0)}
    mx.eval(tensors)
    write_tensors(folder, tensors)
    with pytest.raises(CheckpointRejected) as caught:
        load(open_checkpoint(folder), NumericPath.FAST, lambda _: None)
    assert (caught.value.key, caught.value.problem) == (f"{UP}.global_scale", "is no part of this model")


@pytest.mark.parametrize("arithmetic", [MlxArithmetic, NativeArithmetic] if kernels.is_available() else [MlxArithmetic])
def test_each_expert_s_own_scale_is_applied(arithmetic: type[MlxArithmetic | NativeArithmetic]) -> None:
    mx.random.seed(3)
    weights = [mx.random.normal((4, *sizes)) * mx.array([1.0, 1e-6, 1e3, 1.0])[:, None, None] for sizes in EXPERTS]
    packed = [scaled_stack(weight) for weight in weights]
    dense = [unpacked(matrix) for matrix in packed]
    for sizes in ((1, 2), (40, 3)):
        x, indices = mx.random.normal((1, sizes[0], 64)), mx.random.randint(0, 4, (1, *sizes))
        found, expected = (arithmetic().experts(ExpertStacks(*each), "silu")(x, indices) for each in (packed, dense))
        assert worst_share(found, expected) < 1e-4


def scaled_stack(weight: mx.array) -> FloatMatrix:
    largest = mx.max(mx.abs(weight), axis=(1, 2))
    parts = [mx.quantize(own, mode="nvfp4", global_scale=largest[index])[:2] for index, own in enumerate(weight)]
    codes, scales = (mx.stack([part[place] for part in parts]) for place in (0, 1))
    return FloatMatrix(codes, scales, 16, 4, "nvfp4", largest)


def unpacked(matrix: FloatMatrix) -> mx.array:
    assert matrix.global_scale is not None
    parts = zip(matrix.codes, matrix.scales, matrix.global_scale, strict=True)
    made = [mx.dequantize(*part[:2], mode="nvfp4", global_scale=part[2], dtype=mx.float32) for part in parts]
    return mx.stack(made)
