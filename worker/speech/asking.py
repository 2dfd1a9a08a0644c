"""Requests for speech in plain types, checked: recordings in one message, and the messages of a stream."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from google.protobuf.duration_pb2 import Duration
from pomona.v1 import transcription_pb2 as pb

from worker import wire
from worker.envelope import Envelope, read_envelope
from worker.errors import InvalidField, StreamOrder, UnsupportedOption
from worker.speech.facts import SpeechFacts
from worker.speech.options import LiveOptions, SpeechOptions
from worker.speech.reading import read_config, read_seconds

MAX_CHUNK_BYTES = 1 << 20
MIN_IDLE_S, MAX_IDLE_S = 0.1, 3600.0
MIN_SILENCE_S, MAX_SILENCE_S = 0.1, 10.0
MIN_INTERVAL_S, MAX_INTERVAL_S = 0.1, 60.0
MAX_OFFSET_S = 366 * 86_400.0
MAX_SKIP_S = 3600.0
# Segments that follow the first must have ids too.
MAX_FIRST_SEGMENT_ID = 1 << 63
ENVELOPE_FIELDS = ("model", "request_id", "adapters", "priority")
_LIVE_FIELDS = ("interim_results", "voice_activity_events", "utterance_end_silence", "interim_interval")

RecordingRequest = TypeVar("RecordingRequest", pb.TranscribeRequest, pb.StreamTranscribeRecordingRequest)


@dataclass(frozen=True, slots=True)
class Asked:
    """A checked request for speech, but for its audio.

    Attributes:
        idle_s: how long the caller may send nothing, where it streams.
    """

    envelope: Envelope
    options: SpeechOptions
    idle_s: float


@dataclass(frozen=True, slots=True)
class AudioChunk:
    """Audio of a stream."""

    content: bytes


@dataclass(frozen=True, slots=True)
class Skip:
    """Silence instead of audio."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Finalize:
    """The utterance ends now."""


def read_recording(body: bytes, kind: type[RecordingRequest], facts: SpeechFacts) -> tuple[Asked, bytes]:
    """Parse and check a request whose audio is in it; return it and the audio.

    Raises:
        RequestError: its subclasses name what is wrong, and the field.
    """
    message = wire.parse(body, kind)
    _refuse_adapters(message)
    options = read_config(message.config, facts, "config")
    return Asked(read_envelope(message), options, facts.idle_s), message.audio


def read_opening(body: bytes, facts: SpeechFacts) -> Asked:
    """Parse and check the first message of a stream.

    Raises:
        StreamOrder: it is not the config.
        RequestError: its other subclasses name what is wrong, and the field.
    """
    message = wire.parse(body, pb.StreamTranscribeRequest)
    _refuse_adapters(message)
    envelope = read_envelope(message)
    if message.WhichOneof("payload") != "config":
        raise StreamOrder("the first message of a stream is its config")
    config = message.config
    live = _read_live(config) if config.mode == pb.StreamTranscriptionConfig.MODE_LIVE else None
    options = replace(
        read_config(config.transcription, facts, "config.transcription", live),
        time_offset_s=read_seconds(config.time_offset, 0.0, MAX_OFFSET_S, "config.time_offset"),
        first_segment_id=config.first_segment_id,
    )
    if config.first_segment_id > MAX_FIRST_SEGMENT_ID:
        raise InvalidField("config.first_segment_id", f"at most {MAX_FIRST_SEGMENT_ID}")
    if live is None:
        _refuse_live_fields(config)
    return Asked(envelope, options, _read_idle_s(config, facts))


def read_message(body: bytes, options: SpeechOptions) -> AudioChunk | Skip | Finalize:
    """Parse and check a message of a stream that is not the first.

    Raises:
        StreamOrder: it is another config, or has an envelope.
        RequestError: its other subclasses name what is wrong, and the field.
    """
    message = wire.parse(body, pb.StreamTranscribeRequest)
    repeated = next((name for name in ENVELOPE_FIELDS if getattr(message, name)), None)
    if repeated is not None:
        raise StreamOrder(f"{repeated} stands in the first message alone")
    match message.WhichOneof("payload"):
        case "audio":
            return _read_audio(message.audio)
        case "skip":
            return _read_skip(message.skip, options)
        case "finalize":
            return _read_finalize(options)
        case "config":
            raise StreamOrder("a stream has one config")
        case _:
            raise InvalidField("payload", "give audio, skip or finalize")


def _read_audio(content: bytes) -> AudioChunk:
    if len(content) > MAX_CHUNK_BYTES:
        raise InvalidField("audio", f"at most {MAX_CHUNK_BYTES} bytes in a message")
    return AudioChunk(content)


def _read_skip(length: Duration, options: SpeechOptions) -> Skip:
    if options.pcm is None:
        raise UnsupportedOption("skip", "a container keeps its own time; only with raw samples")
    return Skip(read_seconds(length, 0.0, MAX_SKIP_S, "skip"))


def _read_finalize(options: SpeechOptions) -> Finalize:
    if options.live is None:
        raise UnsupportedOption("finalize", "only in MODE_LIVE")
    return Finalize()


def _refuse_adapters(message: pb.TranscribeRequest | pb.StreamTranscribeRecordingRequest | pb.StreamTranscribeRequest):
    if message.adapters:
        raise UnsupportedOption("adapters")


def _refuse_live_fields(config: pb.StreamTranscriptionConfig) -> None:
    for each, _ in config.ListFields():
        if each.name in _LIVE_FIELDS:
            raise UnsupportedOption(f"config.{each.name}", "only in MODE_LIVE")


def _read_live(config: pb.StreamTranscriptionConfig) -> LiveOptions:
    live = LiveOptions(config.interim_results, config.voice_activity_events)
    if config.HasField("utterance_end_silence"):
        path = "config.utterance_end_silence"
        silence_s = read_seconds(config.utterance_end_silence, MIN_SILENCE_S, MAX_SILENCE_S, path)
        live = replace(live, utterance_end_s=silence_s)
    if config.HasField("interim_interval"):
        path = "config.interim_interval"
        if not config.interim_results:
            raise InvalidField(path, "only with interim_results")
        live = replace(
            live, interim_interval_s=read_seconds(config.interim_interval, MIN_INTERVAL_S, MAX_INTERVAL_S, path)
        )
    return live


def _read_idle_s(config: pb.StreamTranscriptionConfig, facts: SpeechFacts) -> float:
    if not config.HasField("idle_timeout"):
        return facts.idle_s
    return read_seconds(config.idle_timeout, MIN_IDLE_S, MAX_IDLE_S, "config.idle_timeout")
