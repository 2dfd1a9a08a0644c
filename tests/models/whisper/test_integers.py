"""CTranslate2's models in whole numbers: each weight is its number divided by its row's scale, and nothing else."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from models.checkpoint.errors import CheckpointCorrupt
from models.checkpoint.raw_arrays import read_raw_array
from models.step import NumericPath
from models.whisper.ctranslate2 import read_model_file
from models.whisper.folder import open_whisper
from models.whisper.layouts import from_ctranslate2
from tests.models.whisper.hearing import load, logits_of
from tests.support.tiny_whisper import SIZES, random_weights, whole_numbers, write_ctranslate2, write_mlx

KINDS = ("int8", "int16", "int8_float16")
TYPES = {"I8": np.int8, "I16": np.int16, "F16": np.float16, "F32": np.float32}
LAYER = "decoder/layer_0/ffn/linear_0"


def unrounded(folder: Path, whole: Path) -> Path:
    """Write floats that are the quotients of a model in whole numbers."""
    model = read_model_file(whole / "model.bin")
    stored = (whole / "model.bin").read_bytes()

    def numbers(name: str) -> np.ndarray:
        variable = model.variables[name]
        raw = stored[variable.offset : variable.offset + variable.nbytes]
        return np.frombuffer(raw, TYPES[variable.dtype]).reshape(variable.shape).astype(np.float32)

    quotients: dict[str, np.ndarray] = {}
    for name in model.variables:
        if name.endswith("weight"):
            scales = numbers(f"{name}_scale")
            quotients[name] = numbers(name) / scales.reshape(-1, *(1 for _ in numbers(name).shape[1:]))
        elif not name.endswith("_scale") and name not in model.scalars:
            quotients[name] = numbers(name)
    return write_ctranslate2(folder, changed=quotients)


@pytest.mark.parametrize("path", NumericPath)
@pytest.mark.parametrize("dtype", KINDS)
def test_whole_numbers_give_the_logits_of_the_weights_that_they_stand_for(
    tmp_path: Path, dtype: str, path: NumericPath
) -> None:
    whole = load(write_ctranslate2(tmp_path / "whole", dtype=dtype), path)
    plain = load(unrounded(tmp_path / "plain", tmp_path / "whole"), path)
    for ours, expected in zip(logits_of(whole.model), logits_of(plain.model), strict=True):
        np.testing.assert_allclose(np.array(ours), np.array(expected), rtol=0, atol=3e-4)


def test_bytes_stay_bytes_in_memory(tmp_path: Path) -> None:
    sizes = {dtype: load(write_ctranslate2(tmp_path / dtype, dtype=dtype)).weights_bytes for dtype in ("int8", "int16")}
    assert sizes["int8"] < 0.4 * sizes["int16"]


@pytest.mark.parametrize("dtype", KINDS)
def test_a_model_in_whole_numbers_says_how_it_is_packed(tmp_path: Path, dtype: str) -> None:
    checkpoint = open_whisper(write_ctranslate2(tmp_path / "tiny", dtype=dtype))
    words = "" if dtype == "int16" else "affine 8-bit g64, mixed"
    assert str(checkpoint.quantization or "") == words
    assert {info.dtype for info in checkpoint.tensors.values()} <= {"F32", "F16", "U32"}


def test_rows_that_no_group_divides_become_floats(tmp_path: Path) -> None:
    model = read_model_file(write_ctranslate2(tmp_path / "tiny", dtype="int8") / "model.bin")
    convolution = from_ctranslate2(model)["encoder.conv1.weight"]
    numbers, scales = whole_numbers(
        np.array(mx.transpose(random_weights(SIZES, 0)["encoder.conv1.weight"], (0, 2, 1))), "int8"
    )
    expected = numbers.astype(np.float32) / scales[:, None, None]
    np.testing.assert_allclose(np.array(read_raw_array(convolution)), expected, rtol=1e-6)
    assert convolution.shape == (64, 3, 80)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({f"{LAYER}/weight_scale": np.ones(255, np.float32)}, "has no scale for each row"),
        ({f"{LAYER}/weight_scale": np.ones(256, np.float16)}, "has no scale for each row"),
        ({f"{LAYER}/weight_scale": np.zeros(256, np.float32)}, "has a scale by which nothing can be divided"),
        ({f"{LAYER}/weight_scale": np.full(256, np.inf, np.float32)}, "has a scale by which nothing can be divided"),
        ({"decoder/strange/weight_scale": np.ones(3, np.float32)}, "is no part of a Whisper model"),
    ],
)
def test_scales_that_are_none_are_refused(tmp_path: Path, changes: dict[str, np.ndarray], words: str) -> None:
    folder = write_ctranslate2(tmp_path / "tiny", dtype="int8", changed=changes)
    with pytest.raises(CheckpointCorrupt, match=words):
        load(folder)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("path", NumericPath)
def test_mlx_layout_may_be_packed(tmp_path: Path, bits: int, path: NumericPath) -> None:
    packed = load(write_mlx(tmp_path / "packed", quantization={"group_size": 32, "bits": bits}), path)
    plain = load(unpacked(tmp_path / "plain", bits), path)
    for ours, expected in zip(logits_of(packed.model), logits_of(plain.model), strict=True):
        np.testing.assert_allclose(np.array(ours), np.array(expected), rtol=0, atol=3e-4)
    assert packed.weights_bytes < plain.weights_bytes / 2


def unpacked(folder: Path, bits: int) -> Path:
    """Write MLX's layout with the weights that so many bits leave."""
    write_mlx(folder)
    file = folder / "weights.safetensors"
    tensors = mx.load(str(file))
    assert isinstance(tensors, dict)
    for name, array in random_weights(SIZES, 0).items():
        if name.endswith(".weight") and "conv" not in name and "ln" not in name:
            tensors[name] = mx.dequantize(*mx.quantize(array, 32, bits), group_size=32, bits=bits)
    mx.save_safetensors(str(file), tensors)
    return folder
