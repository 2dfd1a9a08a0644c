"""From checkpoints to models: which architectures, which weights stay packed, and what is said of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from models import registry
from models.checkpoint.checkpoint import open_checkpoint
from models.checkpoint.errors import CheckpointRejected
from models.step import NumericPath, RowPlan
from tests.support.tiny_models import VOCAB_SIZE, write_llama

Q4: dict[str, Any] = {"group_size": 32, "bits": 4}
NUM_PACKED = 2 * (64 * (64 + 32 + 32 + 64) + 3 * 64 * 128) + 2 * VOCAB_SIZE * 64
NUM_PLAIN = 2 * 2 * 64 + 64
BYTES_A_GROUP = 2 * 4


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "device_name", lambda: "cpu")


def packed_bytes(num_weights: int) -> int:
    return num_weights // 2 + num_weights // 32 * BYTES_A_GROUP


def weights_bytes(folder: Path, path: NumericPath, cpu_kernels: bool = True) -> int:
    loaded = registry.load(open_checkpoint(folder), path, lambda _: None, cpu_kernels=cpu_kernels)
    return loaded.weights_bytes


def test_an_architecture_without_an_entry_is_refused_by_name(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_llama(tmp_path / "tiny"))
    other = replace(checkpoint, text=replace(checkpoint.text, model_type="mamba"))
    with pytest.raises(CheckpointRejected, match="the architecture mamba is not one of llama"):
        registry.load(other, NumericPath.FAST, lambda _: None)


def test_the_reference_path_keeps_weights_as_they_are_stored(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "tiny", quantization=Q4)
    assert weights_bytes(folder, NumericPath.REFERENCE) == packed_bytes(NUM_PACKED) + 4 * NUM_PLAIN


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("cpu_kernels", [True, False])
def test_the_fast_path_keeps_weights_packed(tmp_path: Path, cpu_kernels: bool) -> None:
    folder = write_llama(tmp_path / "tiny", quantization=Q4)
    assert weights_bytes(folder, NumericPath.FAST, cpu_kernels) == packed_bytes(NUM_PACKED) + 4 * NUM_PLAIN


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(
    ("path", "cpu_kernels", "are_built", "arithmetic"),
    [
        (NumericPath.FAST, True, True, "native"),
        (NumericPath.FAST, False, True, "mlx"),
        (NumericPath.FAST, True, False, "mlx"),
        (NumericPath.REFERENCE, True, True, "mlx"),
    ],
)
def test_native_kernels_compute_on_the_fast_path_where_they_are_built_and_wanted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    path: NumericPath,
    cpu_kernels: bool,
    are_built: bool,
    arithmetic: str,
) -> None:
    monkeypatch.setattr(registry.kernels, "is_available", lambda: are_built)
    checkpoint = open_checkpoint(write_llama(tmp_path / "tiny"))
    assert registry.load(checkpoint, path, lambda _: None, cpu_kernels=cpu_kernels).arithmetic.name == arithmetic


def test_native_kernels_are_for_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "device_name", lambda: "metal")
    checkpoint = open_checkpoint(write_llama(tmp_path / "tiny"))
    assert registry.load(checkpoint, NumericPath.FAST, lambda _: None).arithmetic.name == "mlx"


@pytest.mark.parametrize(("token_ids", "num_tokens"), [(None, 1), ((), 0), ((1, 2, 3), 3)])
def test_a_row_counts_its_tokens_wherever_they_are(token_ids: tuple[int, ...] | None, num_tokens: int) -> None:
    assert RowPlan(0, token_ids, 0, ()).num_tokens == num_tokens
