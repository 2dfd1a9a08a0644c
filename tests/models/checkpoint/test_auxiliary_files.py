"""What a written checkpoint takes over from the one that it was made of."""

import logging
import os
from pathlib import Path

import pytest

from models.checkpoint.auxiliary_files import AUXILIARY_FILES, auxiliary_files, copy_auxiliary_files

# What the reference system copies beside the weights of a checkpoint that it writes, in its order.
KNOWN = [
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "spiece.model"),
    *("chat_template.jinja", "generation_config.json"),
    *("special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt"),
    *("README.md", "kv_config.json"),
]


def filled(folder: Path, *names: str) -> Path:
    folder.mkdir()
    for name in names:
        (folder / name).write_bytes(b"\r\n\0" + name.encode())
    return folder


def test_the_known_files_are_those_of_the_reference() -> None:
    assert list(AUXILIARY_FILES) == KNOWN


def test_every_known_file_is_copied_byte_by_byte(tmp_path: Path) -> None:
    source, target = filled(tmp_path / "a", *KNOWN), tmp_path / "deep" / "b"
    assert list(copy_auxiliary_files(source, target)) == KNOWN
    assert {path.name: path.read_bytes() for path in target.iterdir()} == {
        name: (source / name).read_bytes() for name in KNOWN
    }


def test_any_other_model_of_a_tokenizer_follows_them(tmp_path: Path) -> None:
    source = filled(tmp_path / "a", "zz.model", "README.md", "bpe.model", "tokenizer.model", "model.bin")
    assert copy_auxiliary_files(source, tmp_path / "b") == ("tokenizer.model", "README.md", "bpe.model", "zz.model")


def test_weights_configs_and_code_stay_behind(tmp_path: Path) -> None:
    source = filled(tmp_path / "a", "config.json", "model.safetensors", "modeling_x.py", "model.safetensors.index.json")
    assert copy_auxiliary_files(source, tmp_path / "b") == ()
    assert list((tmp_path / "b").iterdir()) == []


def test_what_is_there_already_is_replaced(tmp_path: Path) -> None:
    source, target = filled(tmp_path / "a", "vocab.json"), filled(tmp_path / "b", "merges.txt")
    (target / "vocab.json").write_text("old and much longer than the new one")
    copy_auxiliary_files(source, target)
    assert (target / "vocab.json").read_bytes() == (source / "vocab.json").read_bytes()
    assert (target / "merges.txt").exists()


def test_copying_a_folder_onto_itself_changes_nothing(tmp_path: Path) -> None:
    source = filled(tmp_path / "a", "vocab.json")
    before = (source / "vocab.json").read_bytes()
    assert copy_auxiliary_files(source, source) == ("vocab.json",)
    assert [path.name for path in source.iterdir()] == ["vocab.json"]
    assert (source / "vocab.json").read_bytes() == before


def test_a_folder_that_is_not_there_has_none(tmp_path: Path) -> None:
    assert auxiliary_files(tmp_path / "nothing") == ()


def test_what_is_no_file_is_left_alone(tmp_path: Path) -> None:
    source = filled(tmp_path / "a", "merges.txt")
    (source / "old.model").mkdir()
    os.mkfifo(source / "vocab.json")
    assert copy_auxiliary_files(source, tmp_path / "b") == ("merges.txt",)


def test_a_link_that_leads_outside_is_left_out_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = filled(tmp_path / "a", "merges.txt")
    (tmp_path / "secret").write_text("secret")
    (source / "README.md").symlink_to(tmp_path / "secret")
    with caplog.at_level(logging.WARNING):
        assert copy_auxiliary_files(source, tmp_path / "b") == ("merges.txt",)
    assert caplog.messages == [
        "auxiliary file left out: README.md: is a link that leads outside the checkpoint's folder"
    ]


def test_links_of_a_hubs_cache_are_followed(tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "snapshots" / "abc", tmp_path / "blobs"
    snapshot.mkdir(parents=True)
    filled(blobs, "0123")
    (snapshot / "tokenizer.json").symlink_to(Path("../../blobs/0123"))
    assert copy_auxiliary_files(snapshot, tmp_path / "b") == ("tokenizer.json",)
    assert not (tmp_path / "b" / "tokenizer.json").is_symlink()


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    source, target = filled(tmp_path / "a", "vocab.json"), tmp_path / "b"
    (target / "vocab.json").mkdir(parents=True)
    (target / "vocab.json" / "inner").touch()
    with pytest.raises(OSError, match="vocab"):
        copy_auxiliary_files(source, target)
    assert [path.name for path in target.iterdir()] == ["vocab.json"]
