"""Which files of a repository are downloaded."""

from typing import Any, NoReturn

import pytest

from gateway.hub.selection import NothingUsable, RemoteFile, select

TEXT = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def files(*names: str) -> list[RemoteFile]:
    return [RemoteFile(name, 10) for name in names]


def never() -> NoReturn:
    raise AssertionError("the config decides nothing here")


def chosen(*names: str, gguf: str = "", config: dict[str, Any] | None = None) -> tuple[set[str], set[str]]:
    selection = select(files(*names), gguf, never if config is None else lambda: config)
    return {file.name for file in selection.files}, {file.name for file in selection.skipped}


def test_what_a_worker_reads_is_chosen_and_other_formats_are_named() -> None:
    others = ("pytorch_model.bin", "tf_model.h5", "flax_model.msgpack", "onnx/model.onnx", "tokenizer.model", "x.py")
    rest = ("README.md", ".gitattributes", "pytorch_model.bin.index.json", "merges.txt", "vocab.json")
    wanted, skipped = chosen(*TEXT, "model.safetensors", *others, *rest)
    assert wanted == {*TEXT, "model.safetensors", "merges.txt", "vocab.json"}
    assert skipped == set(others)


def test_an_index_brings_its_shards_and_no_other_copy_of_the_weights() -> None:
    index = "model.safetensors.index.json"
    wanted, skipped = chosen(*TEXT, index, *SHARDS, "consolidated.safetensors", "original/x.safetensors")
    assert wanted == {*TEXT, index, *SHARDS}
    assert skipped == {"consolidated.safetensors", "original/x.safetensors"}


@pytest.mark.parametrize("name", ["model.safetensors", "weights.safetensors"])
def test_one_file_of_weights_is_enough(name: str) -> None:
    assert chosen("config.json", name, "other.safetensors") == ({"config.json", name}, {"other.safetensors"})


def test_pooling_of_sentence_transformers_is_read_from_its_folders() -> None:
    names = ("modules.json", "config_sentence_transformers.json", "1_Pooling/config.json")
    wanted, _ = chosen("config.json", "model.safetensors", *names, "onnx/config.json", "../1_Pooling/config.json")
    assert wanted == {"config.json", "model.safetensors", *names}


def test_whisper_of_ctranslate2_is_known_by_its_config() -> None:
    wanted, _ = chosen("config.json", "model.bin", "vocabulary.txt", "tokenizer.json", config={"suppress_ids": [1]})
    assert wanted == {"config.json", "model.bin", "vocabulary.txt", "tokenizer.json"}


@pytest.mark.parametrize(
    ("names", "config", "said"),
    [
        (("config.json", "model.bin"), {}, r"no safetensors, but \.bin, which are not read"),
        (("config.json", "pytorch_model.bin", "a.onnx"), None, r"no safetensors, but \.bin, \.onnx"),
        (("config.json",), None, "no safetensors, but nothing else that holds weights"),
        (("model.safetensors",), None, r"no config\.json, but \.safetensors"),
        (("a-Q4_0.gguf", "b.gguf"), None, r"--file NAME\.gguf; there are: a-Q4_0\.gguf, b\.gguf"),
        ((), None, "nothing else"),
    ],
)
def test_a_repository_without_anything_to_serve_says_what_it_has(
    names: tuple[str, ...], config: dict[str, Any] | None, said: str
) -> None:
    with pytest.raises(NothingUsable, match=said):
        chosen(*names, config=config)


def test_a_gguf_file_comes_alone() -> None:
    assert chosen(*TEXT, "model.safetensors", "a.gguf", "b.gguf", gguf="a.gguf") == (
        {"a.gguf"},
        {"model.safetensors", "b.gguf"},
    )


@pytest.mark.parametrize("gguf", ["c.gguf", "config.json", "../a.gguf"])
def test_a_gguf_file_that_is_none_is_refused_with_those_there_are(gguf: str) -> None:
    with pytest.raises(NothingUsable, match=r"no file .*; there are: a\.gguf"):
        chosen("config.json", "a.gguf", gguf=gguf)


@pytest.mark.parametrize("name", ["/etc/x.json", "../x.json", "a/../x.json", ".x.json", "x\n.json", "a/b.json"])
def test_a_name_that_leads_elsewhere_is_never_chosen(name: str) -> None:
    assert name not in chosen("config.json", "model.safetensors", name)[0]
