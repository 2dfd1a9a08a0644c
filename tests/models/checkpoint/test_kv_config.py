"""kv_config.json is read, or refused naming the entry."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.checkpoint.errors import CheckpointCorrupt, CheckpointError, CheckpointMissing, CheckpointRejected
from models.checkpoint.kv_config import LayerBits, read_kv_config
from tests.models.checkpoint.fuzzing import refusal_of


def write(folder: Path, content: object) -> Path:
    (folder / "kv_config.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def refusal(folder: Path, content: object, kind: type[CheckpointError]) -> CheckpointError:
    with pytest.raises(kind) as caught:
        read_kv_config(write(folder, content))
    assert caught.value.file == "kv_config.json"
    return caught.value


def test_reads_each_entry(tmp_path: Path) -> None:
    entries = [{"layer_idx": 5, "bits": 4, "group_size": 128, "kl": 0.1}, {"layer_idx": 0, "bits": 8}]
    assert read_kv_config(write(tmp_path, entries)) == [LayerBits(5, 4, 128), LayerBits(0, 8, 64)]


@pytest.mark.parametrize(
    ("entry", "key"),
    [
        ({"layer_idx": 0, "bits": 3}, "[1].bits"),
        ({"layer_idx": 0, "bits": 16}, "[1].bits"),
        ({"layer_idx": 0, "bits": 8, "group_size": 48}, "[1].group_size"),
    ],
)
def test_names_what_is_not_offered(tmp_path: Path, entry: dict[str, Any], key: str) -> None:
    assert refusal(tmp_path, [{"layer_idx": 9, "bits": 8}, entry], CheckpointRejected).key == key


@pytest.mark.parametrize(
    ("content", "key"),
    [
        ([{"bits": 8}], "[0].layer_idx"),
        ([{"layer_idx": 0}], "[0].bits"),
        ([{"layer_idx": True, "bits": 8}], "[0].layer_idx"),
        ([{"layer_idx": -1, "bits": 8}], "[0].layer_idx"),
        ([{"layer_idx": 10**30, "bits": 8}], "[0].layer_idx"),
        ([{"layer_idx": 0, "bits": "8"}], "[0].bits"),
        ([{"layer_idx": 0, "bits": 8.0}], "[0].bits"),
        ([{"layer_idx": 0, "bits": 8, "group_size": None}], "[0].group_size"),
        ([5], "[0]"),
        ([], ""),
        ({"layer_idx": 0, "bits": 8}, ""),
        ("null", ""),
        ("[", ""),
        ("[" * 100_000, ""),
        ([{"layer_idx": 0, "bits": 8}, {"layer_idx": 0, "bits": 4}], ""),
    ],
)
def test_names_what_is_broken(tmp_path: Path, content: object, key: str) -> None:
    assert refusal(tmp_path, content, CheckpointCorrupt).key == key


def test_refuses_a_file_beyond_reason(tmp_path: Path) -> None:
    refusal(tmp_path, " " * (1 << 20) + "[]", CheckpointRejected)


def test_refuses_a_link_that_leads_outside(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    write(tmp_path, [{"layer_idx": 0, "bits": 8}])
    (folder / "kv_config.json").symlink_to(tmp_path / "kv_config.json")
    with pytest.raises(CheckpointRejected):
        read_kv_config(folder)


def test_says_that_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(CheckpointMissing):
        read_kv_config(tmp_path)


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(st.dictionaries(st.sampled_from(["layer_idx", "bits", "group_size"]), VALUES) | VALUES, max_size=3)
    | VALUES
)
def test_any_json_is_read_or_refused(tmp_path: Path, content: object) -> None:
    error = refusal_of(lambda: read_kv_config(write(tmp_path, json.dumps(content))))
    assert error is None or error.file == "kv_config.json"
