"""Where a checkpoint keeps its chat template."""

import json
from pathlib import Path

import pytest

from models.checkpoint.errors import CheckpointCorrupt, CheckpointRejected
from models.checkpoint.template_source import MAX_TEMPLATE_BYTES, gguf_template_source, read_template_source


def configured(folder: Path, template: object) -> Path:
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return folder


def test_the_file_goes_before_tokenizer_config(tmp_path: Path) -> None:
    configured(tmp_path, "old")
    (tmp_path / "chat_template.jinja").write_text("new é")
    assert read_template_source(tmp_path) == "new é"


@pytest.mark.parametrize(
    "template", ["one", [{"name": "tool_use", "template": "two"}, {"name": "default", "template": "one"}]]
)
def test_reads_one_template_or_the_default_of_several(tmp_path: Path, template: object) -> None:
    assert read_template_source(configured(tmp_path, template)) == "one"


def test_a_checkpoint_may_have_none(tmp_path: Path) -> None:
    assert read_template_source(tmp_path) is None
    assert gguf_template_source({}, "m.gguf") is None


def test_refuses_several_without_a_default(tmp_path: Path) -> None:
    with pytest.raises(CheckpointRejected, match="default"):
        read_template_source(configured(tmp_path, [{"name": "tool_use", "template": "two"}]))


@pytest.mark.parametrize("template", [3, {"a": 1}, [{"name": "default", "template": 3}]])
def test_refuses_what_is_no_text(tmp_path: Path, template: object) -> None:
    with pytest.raises(CheckpointCorrupt) as caught:
        read_template_source(configured(tmp_path, template))
    assert (caught.value.file, caught.value.key) == ("tokenizer_config.json", "chat_template")


def test_refuses_a_template_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(CheckpointCorrupt, match="UTF-8"):
        read_template_source(tmp_path)


def test_refuses_a_template_over_the_limit(tmp_path: Path) -> None:
    with pytest.raises(CheckpointRejected, match="over"):
        read_template_source(configured(tmp_path, "x" * (MAX_TEMPLATE_BYTES + 1)))
    (tmp_path / "chat_template.jinja").write_bytes(b"x" * (MAX_TEMPLATE_BYTES + 1))
    with pytest.raises(CheckpointRejected, match="larger"):
        read_template_source(tmp_path)
