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


def weights_bytes(folder: Path, path: NumericPath) -> int:
    loaded = registry.load(open_checkpoint(folder), path, lambda _: None)
    return loaded.weights_bytes


def test_an_architecture_without_an_entry_is_refused_by_name(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_llama(tmp_path / "tiny"))
    other = replace(checkpoint, config={**checkpoint.config, "model_type": "mamba"})
    with pytest.raises(CheckpointRejected, match="the architecture mamba is not one of llama"):
        registry.load(other, NumericPath.FAST, lambda _: None)


def test_the_reference_path_keeps_weights_as_they_are_stored(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "tiny", quantization=Q4)
    assert weights_bytes(folder, NumericPath.REFERENCE) == packed_bytes(NUM_PACKED) + 4 * NUM_PLAIN


@pytest.mark.usefixtures("on_cpu")
def test_the_fast_path_expands_small_models_and_keeps_the_rows_of_the_embedding_packed(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "tiny", quantization=Q4)
    embedding = VOCAB_SIZE * 64
    expected = 4 * (NUM_PACKED - embedding) + packed_bytes(embedding) + 4 * NUM_PLAIN
    assert weights_bytes(folder, NumericPath.FAST) == expected


@pytest.mark.usefixtures("on_cpu")
def test_the_fast_path_keeps_large_models_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_CPU_EXPANDED_BYTES", 4 * NUM_PACKED - 1)
    folder = write_llama(tmp_path / "tiny", quantization=Q4)
    assert weights_bytes(folder, NumericPath.FAST) == packed_bytes(NUM_PACKED) + 4 * NUM_PLAIN


@pytest.mark.parametrize(("token_ids", "num_tokens"), [(None, 1), ((), 0), ((1, 2, 3), 3)])
def test_a_row_counts_its_tokens_wherever_they_are(token_ids: tuple[int, ...] | None, num_tokens: int) -> None:
    assert RowPlan(0, token_ids, 0, ()).num_tokens == num_tokens
