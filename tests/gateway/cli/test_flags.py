"""Fields that a server finds wrong are told by the options that set them."""

import grpc
import pytest
from pomona.v1 import transcription_pb2 as t

from gateway.cli.app import VERBS, _command
from gateway.cli.flags import FLAGS, flag_of, told_by_flag
from tests.support.scripted_server import Fail, ScriptedServer

from .conftest import Run


def test_every_flag_is_an_option_of_some_verb() -> None:
    options = {each for name in VERBS for param in _command(name).params for each in param.opts}
    assert set(FLAGS.values()) <= options


def test_every_field_of_a_transcription_has_its_option() -> None:
    for field in t.TranscriptionConfig.DESCRIPTOR.fields:
        assert field.name in FLAGS or field.name == "format", field.name
    assert flag_of("config.transcription.format.pcm.sample_rate_hz") == "--pcm"
    assert flag_of("config.transcription.format.pcm.channel_mode") == "--channels"


@pytest.mark.parametrize(
    ("message", "path", "told"),
    [
        ("config.transcription.languages[0]: no xx", "config.transcription.languages[0]", "--language: no xx"),
        ("config.clips[2].start_offset: too late", "config.clips[2].start_offset", "--clips: too late"),
        ("A field is invalid: kv_scheme is refused", "kv_scheme", "A field is invalid: --kv-scheme is refused"),
        ("A field is invalid: model is no name", "model", "A field is invalid: model is no name"),
        ("spec.seeds: x", "spec.seed", "spec.seeds: x"),
        ("it failed", "", "it failed"),
    ],
)
def test_message_names_the_option_in_the_place_of_the_field(message: str, path: str, told: str) -> None:
    assert told_by_flag(message, path) == told


def test_program_reads_the_field_as_the_server_names_it(server: ScriptedServer, run: Run) -> None:
    path = "spec.sampling.top_k"
    server.scripts["StreamGenerate"] = [
        Fail(grpc.StatusCode.INVALID_ARGUMENT, f"{path}: from 0 on", "INVALID_FIELD", {"field": path})
    ]
    done = run("chat", "m", "hi", "--json")
    assert done.stderr == "error: INVALID_ARGUMENT INVALID_FIELD: --top-k: from 0 on\n"
    assert f'"field": "{path}"' in done.stdout
