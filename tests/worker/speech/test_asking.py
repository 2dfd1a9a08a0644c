"""The messages of requests for speech: what comes first, what comes once, and what comes where."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from pomona.v1 import common_pb2
from pomona.v1 import transcription_pb2 as pb

from models.whisper.languages import LANGUAGES
from worker.audio.pcm import Encoding, PcmFormat
from worker.errors import FieldError, InvalidField, StreamOrder, UnsupportedOption
from worker.speech.asking import (
    MAX_CHUNK_BYTES,
    Asked,
    AudioChunk,
    Finalize,
    Skip,
    read_message,
    read_opening,
    read_recording,
)
from worker.speech.facts import SpeechFacts
from worker.speech.options import LiveOptions, SpeechOptions

Config = pb.StreamTranscriptionConfig
FACTS = SpeechFacts(LANGUAGES[:99], is_multilingual=True, can_translate=True, max_audio_s=100.0, idle_s=30.0)
ENVELOPE: dict[str, Any] = {"model": "m", "request_id": "r"}
FILE = SpeechOptions(pcm=PcmFormat(Encoding.S16_LE, 16_000, 1))
LIVE = SpeechOptions(live=LiveOptions())
SECOND = Duration(seconds=1)


def opened(**fields: Any) -> Asked:
    return read_opening(pb.StreamTranscribeRequest(**ENVELOPE, config=Config(**fields)).SerializeToString(), FACTS)


def message(options: SpeechOptions = FILE, **fields: Any) -> AudioChunk | Skip | Finalize:
    return read_message(pb.StreamTranscribeRequest(**fields).SerializeToString(), options)


@pytest.mark.parametrize("kind", [pb.TranscribeRequest, pb.StreamTranscribeRecordingRequest])
def test_a_recording_comes_with_its_config(kind: Any):
    config = pb.TranscriptionConfig(word_timestamps=True)
    asked, audio = read_recording(kind(**ENVELOPE, config=config, audio=b"abc").SerializeToString(), kind, FACTS)
    assert (asked.envelope.request_id, asked.options.has_words, audio) == ("r", True, b"abc")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"adapters": [common_pb2.AdapterUse()]}, "adapters"),
        ({"request_id": ""}, "request_id"),
        ({"priority": 1000}, "priority"),
        ({"config": pb.TranscriptionConfig(beam_size=99)}, "config.beam_size"),
    ],
)
def test_what_is_wrong_with_a_recording_is_named(fields: dict[str, Any], named: str):
    body = pb.TranscribeRequest(**(ENVELOPE | fields)).SerializeToString()
    with pytest.raises(FieldError) as raised:
        read_recording(body, pb.TranscribeRequest, FACTS)
    assert raised.value.field == named


def test_a_field_that_is_not_known_is_refused():
    with pytest.raises(UnsupportedOption):
        read_recording(
            pb.TranscribeRequest(**ENVELOPE).SerializeToString() + b"\xf8\x07\x01", pb.TranscribeRequest, FACTS
        )


def test_a_stream_opens_with_its_config():
    asked = opened(
        transcription=pb.TranscriptionConfig(word_timestamps=True),
        mode=Config.MODE_LIVE,
        interim_results=True,
        voice_activity_events=True,
        utterance_end_silence=SECOND,
        interim_interval=SECOND,
        idle_timeout=Duration(seconds=7),
        time_offset=Duration(seconds=9),
        first_segment_id=5,
    )
    assert asked.idle_s == 7
    assert asked.options == SpeechOptions(
        path="config.transcription",
        has_words=True,
        conditions_on_previous=False,
        live=LiveOptions(True, True, 1.0, 1.0),
        time_offset_s=9.0,
        first_segment_id=5,
    )


def test_a_stream_that_says_nothing_is_a_file():
    asked = opened()
    assert (asked.options.live, asked.idle_s) == (None, 30.0)


@pytest.mark.parametrize(
    ("fields", "named", "kind"),
    [
        ({"interim_results": True}, "config.interim_results", UnsupportedOption),
        ({"voice_activity_events": True}, "config.voice_activity_events", UnsupportedOption),
        ({"utterance_end_silence": SECOND}, "config.utterance_end_silence", UnsupportedOption),
        ({"interim_interval": SECOND}, "config.interim_interval", UnsupportedOption),
        ({"idle_timeout": Duration()}, "config.idle_timeout", InvalidField),
        ({"idle_timeout": Duration(seconds=3601)}, "config.idle_timeout", InvalidField),
        ({"time_offset": Duration(seconds=-1)}, "config.time_offset", InvalidField),
        ({"first_segment_id": (1 << 63) + 1}, "config.first_segment_id", InvalidField),
        ({"mode": Config.MODE_LIVE, "interim_interval": SECOND}, "config.interim_interval", InvalidField),
        ({"mode": Config.MODE_LIVE, "utterance_end_silence": Duration()}, "config.utterance_end_silence", InvalidField),
        ({"mode": 9}, "config.mode", UnsupportedOption),
        (
            {"mode": Config.MODE_LIVE, "transcription": pb.TranscriptionConfig(clips=[pb.Clip()])},
            "config.transcription.clips",
            UnsupportedOption,
        ),
        (
            {"mode": Config.MODE_LIVE, "transcription": pb.TranscriptionConfig(voice_activity_filter=False)},
            "config.transcription.voice_activity_filter",
            UnsupportedOption,
        ),
        (
            {"transcription": pb.TranscriptionConfig(beam_size=99)},
            "config.transcription.beam_size",
            InvalidField,
        ),
    ],
)
def test_what_is_wrong_with_a_config_is_named(fields: dict[str, Any], named: str, kind: type[FieldError]):
    with pytest.raises(FieldError) as raised:
        opened(**fields)
    assert (type(raised.value), raised.value.field) == (kind, named)


@pytest.mark.parametrize("fields", [{}, {"audio": b"x"}, {"skip": SECOND}, {"finalize": pb.FinalizeUtterance()}])
def test_nothing_comes_before_the_config(fields: dict[str, Any]):
    with pytest.raises(StreamOrder):
        read_opening(pb.StreamTranscribeRequest(**ENVELOPE, **fields).SerializeToString(), FACTS)


@pytest.mark.parametrize(
    "fields",
    [
        {"config": Config()},
        {"audio": b"x", "model": "m"},
        {"audio": b"x", "request_id": "r"},
        {"audio": b"x", "priority": 1},
        {"audio": b"x", "adapters": [common_pb2.AdapterUse()]},
    ],
)
def test_the_config_and_the_envelope_come_once(fields: dict[str, Any]):
    with pytest.raises(StreamOrder):
        message(**fields)


def test_what_follows_is_audio_silence_and_ends_of_utterances():
    assert message(audio=b"ab") == AudioChunk(b"ab")
    assert message(skip=SECOND) == Skip(1.0)
    assert message(skip=Duration(seconds=3600)) == Skip(3600.0)
    assert message(LIVE, finalize=pb.FinalizeUtterance()) == Finalize()


@pytest.mark.parametrize(
    ("options", "fields", "named", "kind"),
    [
        (FILE, {}, "payload", InvalidField),
        (FILE, {"audio": bytes(MAX_CHUNK_BYTES + 1)}, "audio", InvalidField),
        (FILE, {"skip": Duration(seconds=-1)}, "skip", InvalidField),
        (FILE, {"skip": Duration(seconds=3600, nanos=1)}, "skip", InvalidField),
        (FILE, {"finalize": pb.FinalizeUtterance()}, "finalize", UnsupportedOption),
        (LIVE, {"skip": SECOND}, "skip", UnsupportedOption),
    ],
)
def test_what_is_wrong_with_a_message_is_named(
    options: SpeechOptions, fields: dict[str, Any], named: str, kind: type[FieldError]
):
    with pytest.raises(FieldError) as raised:
        message(options, **fields)
    assert (type(raised.value), raised.value.field) == (kind, named)


def test_a_message_may_have_as_much_as_it_may():
    assert message(audio=bytes(MAX_CHUNK_BYTES)) == AudioChunk(bytes(MAX_CHUNK_BYTES))
