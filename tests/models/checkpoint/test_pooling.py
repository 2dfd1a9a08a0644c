"""What the files of sentence-transformers say is read, and what is not computed is refused by file and key."""

import contextlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.checkpoint.errors import CheckpointCorrupt, CheckpointError, CheckpointRejected
from models.checkpoint.pooling import PoolingMode, has_pooling, read_pooling
from tests.support.tiny_embedders import PROMPTS, write_pooling

MODULES, POOLING, TOLD = "modules.json", "1_Pooling/config.json", "config_sentence_transformers.json"


def changed(folder: Path, file: str, change: Callable[[Any], Any]) -> Path:
    """Write the files, one of them changed."""
    write_pooling(folder)
    value = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(change(value)))
    return folder


def test_the_files_of_qwen3_embedding_are_read(tmp_path: Path) -> None:
    write_pooling(tmp_path)
    pooling = read_pooling(tmp_path)
    assert pooling is not None
    assert (pooling.mode, pooling.is_normalized, pooling.prompts) == (PoolingMode.LAST, True, PROMPTS)
    assert (pooling.default_prompt, pooling.max_tokens) == ("", None)


@pytest.mark.parametrize(
    ("flag", "mode"),
    [("cls_token", PoolingMode.FIRST), ("mean_tokens", PoolingMode.MEAN), ("lasttoken", PoolingMode.LAST)],
)
def test_each_mode_that_is_computed_is_found(tmp_path: Path, flag: str, mode: PoolingMode) -> None:
    write_pooling(tmp_path, flag, is_normalized=False)
    pooling = read_pooling(tmp_path)
    assert pooling is not None
    assert (pooling.mode, pooling.is_normalized) == (mode, False)


def test_a_mode_in_one_word_and_classes_that_moved_are_read_too(tmp_path: Path) -> None:
    changed(tmp_path, POOLING, lambda _: {"embedding_dimension": 64, "pooling_mode": "mean"})
    kinds = ["base.modules.transformer.Transformer", "sentence_transformer.modules.pooling.Pooling"]
    modules = [{"type": f"sentence_transformers.{kind}", "path": "1_Pooling"} for kind in kinds]
    (tmp_path / MODULES).write_text(json.dumps(modules))
    pooling = read_pooling(tmp_path)
    assert pooling is not None
    assert (pooling.mode, pooling.is_normalized) == (PoolingMode.MEAN, False)


def test_a_default_prompt_and_a_length_are_read(tmp_path: Path) -> None:
    changed(tmp_path, TOLD, lambda told: {"prompts": {"q": "ask: ", "none": None}, "default_prompt_name": "q"})
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 99}')
    pooling = read_pooling(tmp_path)
    assert pooling is not None
    assert (pooling.default_prompt, pooling.prompts, pooling.max_tokens) == ("ask: ", {"q": "ask: ", "none": ""}, 99)


def test_other_checkpoints_have_none(tmp_path: Path) -> None:
    assert not has_pooling(tmp_path)
    assert not has_pooling(tmp_path / "model.gguf")
    (tmp_path / MODULES).write_text('[{"type": "sentence_transformers.models.Transformer", "path": ""}]')
    assert read_pooling(tmp_path) is None


def test_every_file_tells_in_what_vectors_depend_on(tmp_path: Path) -> None:
    contents: set[tuple[bytes, ...]] = set()
    for index, (file, change) in enumerate(
        [
            (MODULES, lambda modules: modules[:2]),
            (POOLING, lambda pooling: {**pooling, "word_embedding_dimension": 3}),
            (TOLD, lambda told: {**told, "prompts": {}}),
            (TOLD, lambda told: told),
        ]
    ):
        folder = tmp_path / f"{index}"
        folder.mkdir()
        pooling = read_pooling(changed(folder, file, change))
        assert pooling is not None
        contents.add(pooling.contents)
    assert len(contents) == 4


DENSE = {"type": "sentence_transformers.models.Dense", "path": "3_Dense"}
BAD: dict[str, tuple[str, Callable[[Any], Any], str, str]] = {
    "a layer behind": (MODULES, lambda modules: [*modules, DENSE], MODULES, "type"),
    "a module without a class": (MODULES, lambda modules: [{}], MODULES, "type"),
    "another order": (MODULES, lambda modules: [modules[1], modules[0]], MODULES, ""),
    "no modules": (MODULES, lambda modules: [], MODULES, ""),
    "no list": (MODULES, lambda modules: {}, MODULES, ""),
    "a path that leaves": (MODULES, lambda m: [m[0], {**m[1], "path": "../x"}], MODULES, "../x"),
    "no path": (MODULES, lambda m: [m[0], {"type": m[1]["type"]}], MODULES, "path"),
    "the highest": (POOLING, lambda _: {"pooling_mode_max_tokens": True}, POOLING, "pooling_mode_max_tokens"),
    "two modes": (
        POOLING,
        lambda _: {"pooling_mode_cls_token": True, "pooling_mode_lasttoken": True},
        POOLING,
        "pooling_mode_cls_token, pooling_mode_lasttoken",
    ),
    "no mode": (POOLING, lambda _: {}, POOLING, "pooling_mode_…"),
    "a word that is no mode": (POOLING, lambda _: {"pooling_mode": "weightedmean"}, POOLING, "pooling_mode"),
    "the prompt left out": (POOLING, lambda p: {**p, "include_prompt": False}, POOLING, "include_prompt"),
    "a flag that is none": (POOLING, lambda p: {**p, "pooling_mode_lasttoken": 1}, POOLING, "pooling_mode_lasttoken"),
    "prompts that are a list": (TOLD, lambda told: {"prompts": []}, TOLD, "prompts"),
    "a prompt that is no text": (TOLD, lambda told: {"prompts": {"query": 3}}, TOLD, "query"),
    "a default that is no prompt": (TOLD, lambda t: {**t, "default_prompt_name": "x"}, TOLD, "default_prompt_name"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_not_computed_is_refused_by_file_and_key(tmp_path: Path, name: str) -> None:
    file, change, told, key = BAD[name]
    assert has_pooling(changed(tmp_path, file, change))
    with pytest.raises(CheckpointError) as caught:
        read_pooling(tmp_path)
    assert (caught.value.file, caught.value.key) == (told, key)


def test_a_pooling_that_is_not_there_is_missing(tmp_path: Path) -> None:
    write_pooling(tmp_path)
    (tmp_path / POOLING).unlink()
    with pytest.raises(CheckpointError, match="is not there"):
        read_pooling(tmp_path)


def test_broken_files_are_corrupt(tmp_path: Path) -> None:
    write_pooling(tmp_path)
    (tmp_path / MODULES).write_text("[")
    assert has_pooling(tmp_path)
    with pytest.raises(CheckpointCorrupt):
        read_pooling(tmp_path)


def test_links_in_the_cache_of_the_hub_lead_to_its_blobs_and_nowhere_else(tmp_path: Path) -> None:
    snapshot = tmp_path / "repository" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    write_pooling(snapshot)
    blobs = tmp_path / "repository" / "blobs"
    blobs.mkdir()
    (snapshot / POOLING).rename(blobs / "1")
    (snapshot / POOLING).symlink_to("../../../blobs/1")
    assert read_pooling(snapshot) is not None
    (blobs / "1").rename(tmp_path / "1")
    (snapshot / POOLING).unlink()
    (snapshot / POOLING).symlink_to(tmp_path / "1")
    with pytest.raises(CheckpointRejected, match="outside"):
        read_pooling(snapshot)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(file=st.sampled_from((MODULES, POOLING, TOLD)), key=st.integers(0, 8), value=JSON)
def test_whatever_stands_in_the_files_is_read_or_refused(file: str, key: int, value: Any) -> None:
    def change(before: Any) -> Any:
        """Put the value in the place of the file, or of one of its keys or elements."""
        if key == 0:
            return value
        if isinstance(before, list):
            place = key % len(before)
            return [*before[:place], value if key > 5 else {**before[place], "path": value}, *before[place + 1 :]]
        name = sorted(before)[key % len(before)]
        return {**before, name: value}

    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(CheckpointError):
        read_pooling(changed(Path(folder), file, change))
