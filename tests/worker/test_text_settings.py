from pathlib import Path

import pytest

from tests.worker.text_models import tiny
from worker.errors import ModelLoadFailed
from worker.text_settings import DEFAULT_KV_BYTES, TextSettings

CONTEXT = 256


@pytest.mark.parametrize(
    ("kv_bytes", "row_bytes", "num_tokens"),
    [
        (None, 0, 4 * CONTEXT),
        (10 * CONTEXT * 7, 0, 4 * CONTEXT),
        (3 * CONTEXT * 7 + 6, 0, 3 * CONTEXT),
        (3 * CONTEXT * 7, 70, 3 * CONTEXT - 40),  # 70 bytes more for each of 4 rows
        (CONTEXT * 7 + 70, 70, CONTEXT),
    ],
)
def test_rows_hold_as_many_tokens_as_fit(kv_bytes: int | None, row_bytes: int, num_tokens: int):
    settings = TextSettings(max_batch_rows=4, kv_bytes=kv_bytes)
    assert settings.kv_tokens(CONTEXT, lambda count, num_rows: 7 * count + row_bytes * num_rows) == num_tokens


def test_windows_leave_room_for_more_tokens():
    settings = TextSettings(max_batch_rows=4, kv_bytes=4 * 24 * 5 + 3 * CONTEXT * 7)
    assert settings.kv_tokens(CONTEXT, lambda count, num_rows: 7 * count + 5 * min(count, 24 * num_rows)) == 3 * CONTEXT


def test_without_a_setting_one_context_fits_always():
    assert TextSettings().kv_tokens(CONTEXT, lambda count, _: DEFAULT_KV_BYTES * count) == CONTEXT


@pytest.mark.parametrize("row_bytes", [0, 70])
def test_room_for_less_than_a_context_is_refused(row_bytes: int):
    settings = TextSettings(kv_bytes=CONTEXT * 7 + row_bytes - 1)
    with pytest.raises(ModelLoadFailed, match=rf"takes {CONTEXT * 7 + row_bytes}"):
        settings.kv_tokens(CONTEXT, lambda count, num_rows: 7 * count + row_bytes * num_rows)


@pytest.mark.parametrize("scheme", ["8:s64", "4:g32:s64", "turbo:s64"])
def test_tokens_before_the_start_count_as_they_are_computed(tmp_path: Path, scheme: str):
    loaded = tiny(tmp_path / "packed", scheme)
    plain = sum(2 * layer.num_kv_heads * layer.head_dim * 4 for layer in loaded.model.attention_layers)
    assert loaded.token_bytes < plain
    assert [loaded.sequence_bytes(count) for count in (0, 32, 64)] == [0, 32 * plain, 64 * plain]
    assert loaded.sequence_bytes(100) == 64 * plain + 36 * loaded.token_bytes


def test_without_a_start_all_tokens_take_the_same(tmp_path: Path):
    loaded = tiny(tmp_path, "8")
    assert loaded.sequence_bytes(100) == 100 * loaded.token_bytes
