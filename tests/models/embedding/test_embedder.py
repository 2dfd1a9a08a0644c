"""What a checkpoint says of its vectors, and what is known of Qwen3-Embedding where it is silent."""

import json
from pathlib import Path
from typing import Any

import pytest

from models.checkpoint.checkpoint import open_checkpoint
from models.checkpoint.errors import CheckpointRejected
from models.checkpoint.pooling import PoolingMode
from models.embedding.embedder import Embedder, Sizes, read_embedder
from models.embedding.prompts import Prompts, Task
from tests.support.tiny_embedders import QUERY_PROMPT, TIED, write_embedder
from tests.support.tiny_families import Tiny
from tests.support.tiny_models import write_llama


def embedder_of(folder: Path, **options: Any) -> Embedder:
    return read_embedder(open_checkpoint(write_embedder(folder, **options)), folder)


def test_qwen3_embedding_is_known_with_its_files_and_without_them(tmp_path: Path) -> None:
    told, silent = embedder_of(tmp_path / "told"), embedder_of(tmp_path / "silent", prompts=None)
    for each in (told, silent):
        assert (each.mode, each.is_normalized, each.sizes) == (PoolingMode.LAST, True, Sizes(64, least=32))
        assert each.prompts.by_task == {Task.QUERY: QUERY_PROMPT, Task.DOCUMENT: ""}
        assert each.prompts.instructed("Find it") == "Instruct: Find it\nQuery:"
    assert told.revision != silent.revision == open_checkpoint(tmp_path / "silent").revision


def test_of_others_nothing_is_assumed(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "llama")
    silent = read_embedder(open_checkpoint(folder), folder)
    assert (silent.mode, silent.is_normalized, silent.sizes) == (PoolingMode.LAST, True, Sizes(64))
    assert silent.prompts == Prompts()
    mean = embedder_of(tmp_path / "mean", mode="mean_tokens", is_normalized=False, prompts={})
    assert (mean.mode, mean.is_normalized, mean.sizes) == (PoolingMode.MEAN, False, Sizes(64))


@pytest.mark.parametrize(
    ("stated", "sizes"),
    [
        ({"matryoshka_dimensions": [64, 16, 8]}, Sizes(64, (8, 16))),
        ({"is_matryoshka": True}, Sizes(64, least=1)),
        ({"matryoshka_dimensions": [16], "is_matryoshka": True}, Sizes(64, (16,))),
        ({"matryoshka_dimensions": []}, Sizes(64, least=32)),
    ],
)
def test_a_config_says_which_sizes_a_vector_may_have(tmp_path: Path, stated: dict[str, Any], sizes: Sizes) -> None:
    assert embedder_of(tmp_path, tiny=Tiny("qwen3", {**TIED, **stated})).sizes == sizes


@pytest.mark.parametrize("listed", [[65], [0], ["8"], [True], 8])
def test_sizes_that_are_none_are_refused(tmp_path: Path, listed: Any) -> None:
    with pytest.raises(CheckpointRejected, match=r"config\.json: matryoshka_dimensions"):
        embedder_of(tmp_path, tiny=Tiny("qwen3", {**TIED, "matryoshka_dimensions": listed}))


def test_a_range_is_told_by_its_powers_of_two() -> None:
    assert Sizes(1024, least=32).reduced == (32, 64, 128, 256, 512)
    assert Sizes(768, least=32).reduced == (32, 64, 128, 256, 512)
    assert Sizes(64, (8, 16)).reduced == (8, 16)
    assert [Sizes(64, least=32).has(size) for size in (31, 32, 50, 64, 65)] == [False, True, True, True, False]
    assert [Sizes(64, (8, 16)).has(size) for size in (8, 12, 64)] == [True, False, True]


def test_tasks_are_found_by_the_names_that_checkpoints_use() -> None:
    named = {"STS": "s", "Clustering": "u", "passage": "d", "search_query": "q", "BitextMining": "b"}
    prompts = Prompts.of(named, "x")
    expected = {Task.SIMILARITY: "s", Task.CLUSTERING: "u", Task.DOCUMENT: "d", Task.QUERY: "q"}
    assert (prompts.by_task, prompts.default, prompts.frame) == (expected, "x", None)
    assert Prompts.of({"query": "a", "search_query": "b"}).by_task == {Task.QUERY: "a"}


@pytest.mark.parametrize(
    ("prompt", "frame"),
    [("Instruct: Find\nit\nQuery: ", ("Instruct: ", "\nQuery: ")), ("query: ", None), ("Instruct: x\nQuery:y", None)],
)
def test_the_place_of_an_instruction_is_found_in_the_prompt(prompt: str, frame: tuple[str, str] | None) -> None:
    assert Prompts.of({"query": prompt}).frame == frame


def test_a_length_of_the_files_bounds_inputs(tmp_path: Path) -> None:
    write_embedder(tmp_path)
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 77}))
    assert read_embedder(open_checkpoint(tmp_path), tmp_path).max_tokens == 77
