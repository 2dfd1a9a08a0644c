"""What is told of a checkpoint for speech from its headers alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from pomona.v1 import model_pb2

from tests.support.tiny_checkpoints import write_folder
from tests.support.tiny_whisper import write_ctranslate2, write_hugging_face, write_mlx
from worker.describe import describe
from worker.errors import ModelLoadFailed
from worker.kinds import is_speech

Write = Callable[..., Path]
LAYOUTS = [write_mlx, write_hugging_face, write_ctranslate2]


@pytest.mark.parametrize("write", LAYOUTS)
def test_each_layout_is_described(tmp_path: Path, write: Write):
    model = describe(write(tmp_path / "m"))
    assert (model.architecture, list(model.tasks)) == ("whisper", [model_pb2.Model.TASK_TRANSCRIBE])
    assert not model.HasField("generation")
    told = model.transcription
    assert (told.word_timestamps, told.live, told.translate, told.native_sample_rate_hz) == (True, True, True, 16_000)
    assert len(told.languages) == 99
    assert {"en", "jv"} < set(told.languages), "the tags of BCP-47"
    assert len(model.revision) == 16


def test_an_english_only_model_has_english_and_does_not_translate(tmp_path: Path):
    told = describe(write_mlx(tmp_path / "m", sizes={"n_vocab": 51_864})).transcription
    assert (list(told.languages), told.translate) == (["en"], False)


def test_a_model_whose_decoder_was_cut_short_does_not_translate(tmp_path: Path):
    told = describe(write_mlx(tmp_path / "m", sizes={"n_audio_layer": 3})).transcription
    assert not told.translate


@pytest.mark.parametrize(
    ("name", "value"), [("reasoning_marks", "none"), ("tool_dialect", "hermes"), ("task", "embed")]
)
def test_settings_of_text_are_refused(tmp_path: Path, name: str, value: Any):
    with pytest.raises(ModelLoadFailed) as raised:
        describe(write_mlx(tmp_path / "m"), **{name: value})
    assert raised.value.metadata == {"option": name}


def test_other_checkpoints_are_not_speech(tmp_path: Path):
    assert not is_speech(write_folder(tmp_path / "text"))
    assert not is_speech(tmp_path / "nowhere")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    assert not is_speech(tmp_path / "broken")


def test_describing_imports_no_mlx(tmp_path: Path):
    folder = write_mlx(tmp_path / "m")
    code = (
        "import sys; from worker.describe import main; code = main(sys.argv[1:]);"
        "loaded = [name for name in ('mlx', 'av', 'soxr', 'grpc') if name in sys.modules];"
        "sys.exit(code or ', '.join(loaded) or 0)"
    )
    found = subprocess.run([sys.executable, "-P", "-c", code, str(folder)], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    assert json_format.Parse(found.stdout, model_pb2.Model()).architecture == "whisper"
