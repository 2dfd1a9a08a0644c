"""What the command line refuses by itself is what a worker refuses, and by the option of the same field."""

from itertools import product
from typing import Any

import pytest
from pomona.v1 import transcription_pb2 as t

from gateway.cli import raw_pcm, transcription_bounds
from gateway.cli.failures import UsageError
from gateway.cli.flags import FLAGS, flag_of
from models.whisper.languages import LANGUAGES
from worker.errors import FieldError
from worker.speech import asking, options, reading
from worker.speech.facts import SpeechFacts

FACTS = SpeechFacts(LANGUAGES, is_multilingual=True, can_translate=True, max_audio_s=100.0, idle_s=30.0)
Stream = t.StreamTranscriptionConfig
MODES = (Stream.MODE_FILE, Stream.MODE_LIVE)


def config(mode: Stream.Mode.ValueType, **fields: Any) -> Stream:
    given = {name: value for name, value in fields.items() if value is not None}
    return Stream(mode=mode, transcription=t.TranscriptionConfig(**given))


def refused_here(asked: Stream) -> str:
    """Return the option that the command line refuses; empty where it takes all."""
    try:
        transcription_bounds.check(asked)
    except UsageError as error:
        return str(error).partition(":")[0].replace("--no-voice", "--voice")
    return ""


def refused_there(asked: Stream) -> str:
    """Return the option whose field a worker refuses; empty where it takes all."""
    opening = t.StreamTranscribeRequest(model="m", request_id="r", config=asked)
    try:
        asking.read_opening(opening.SerializeToString(), FACTS)
    except FieldError as error:
        return flag_of(error.field)
    return ""


def test_ranges_are_those_of_a_worker() -> None:
    times = {
        "utterance_end_silence": (asking.MIN_SILENCE_S, asking.MAX_SILENCE_S),
        "interim_interval": (asking.MIN_INTERVAL_S, asking.MAX_INTERVAL_S),
        "idle_timeout": (asking.MIN_IDLE_S, asking.MAX_IDLE_S),
    }
    numbers = {**reading.RANGES, "max_alternatives": (0, reading.MAX_ALTERNATIVES)}
    assert {**numbers, **times} == transcription_bounds.RANGES
    counts = {"languages": reading.MAX_LANGUAGES, "phrases": reading.MAX_PHRASES, "clips": reading.MAX_CLIPS}
    assert counts == transcription_bounds.COUNTS
    rates = (raw_pcm.MIN_RATE_HZ, raw_pcm.MAX_RATE_HZ, raw_pcm.MAX_CHANNELS)
    assert rates == (reading.MIN_RATE_HZ, reading.MAX_RATE_HZ, reading.MAX_CHANNELS)
    assert transcription_bounds.FILE_BEAMS == options.FILE_BEAMS


@pytest.mark.parametrize("field", list(reading.RANGES))
def test_ends_of_ranges_are_taken_here_as_there(field: str) -> None:
    for end in reading.RANGES[field]:
        number = type(getattr(t.TranscriptionConfig(), field))(end)
        asked = config(Stream.MODE_FILE, **{field: number})
        try:
            transcription_bounds.within(field, number)
            here = ""
        except UsageError:
            here = FLAGS[field]
        assert here or refused_here(asked) == refused_there(asked)
        assert bool(here) == (end == 0 and field in transcription_bounds.ABOVE)


def test_ways_of_choosing_a_text_are_refused_here_as_there() -> None:
    choices: dict[str, tuple[Any, ...]] = {
        "temperature": (None, 0.0, 0.5),
        "beam_size": (None, 1, 3),
        "best_of": (None, 1, 4),
        "patience": (None, 1.5),
        "length_penalty": (None, 0.5),
        "max_alternatives": (None, 2),
        "voice_activity_filter": (None, False),
    }
    refused: set[str] = set()
    for mode, *values in product(MODES, *choices.values()):
        asked = config(mode, **dict(zip(choices, values, strict=True)))
        assert refused_here(asked) == refused_there(asked), asked
        refused.add(refused_here(asked))
    options = {"--beam", "--best-of", "--patience", "--length-penalty", "--alternatives", "--voice-filter"}
    assert refused == {"", *options}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("languages", ["en"] * 257),
        ("initial_prompt", "ä" * 8193),
        ("phrases", ["Pomona", " "]),
        ("phrases", ["ä" * 129]),
        ("phrases", ["a"] * 257),
        ("clips", [t.Clip()]),
    ],
)
def test_texts_and_lists_are_refused_here_as_there(mode: Stream.Mode.ValueType, field: str, value: Any) -> None:
    asked = config(mode, **{field: value})
    there = refused_there(asked)
    assert refused_here(asked) == there
    assert there == ("" if field == "clips" and mode == Stream.MODE_FILE else FLAGS[field])
