"""Every field of a config is honoured, or refused by its path."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from pomona.v1 import transcription_pb2 as pb

from models.whisper.languages import LANGUAGES
from models.whisper.tokenizer import Task
from worker.audio.pcm import Encoding, PcmFormat
from worker.errors import FieldError, InvalidField, UnsupportedOption
from worker.speech.facts import SpeechFacts
from worker.speech.options import FILE_BEAMS, LiveOptions, SpeechOptions
from worker.speech.reading import read_config

Config = pb.TranscriptionConfig
FACTS = SpeechFacts(LANGUAGES[:99], is_multilingual=True, can_translate=True, max_audio_s=100.0, idle_s=30.0)
ENGLISH_ONLY = SpeechFacts(("en",), is_multilingual=False, can_translate=False, max_audio_s=100.0, idle_s=30.0)
TURBO = SpeechFacts(LANGUAGES, is_multilingual=True, can_translate=False, max_audio_s=100.0, idle_s=30.0)


def read(facts: SpeechFacts = FACTS, live: LiveOptions | None = None, **fields: Any) -> SpeechOptions:
    return read_config(Config(**fields), facts, "config", live)


def refused(facts: SpeechFacts = FACTS, live: LiveOptions | None = None, **fields: Any) -> FieldError:
    with pytest.raises(FieldError) as raised:
        read(facts, live, **fields)
    return raised.value


def clip(start: float, end: float | None = None) -> pb.Clip:
    """Return a clip in whole milliseconds."""
    made = pb.Clip(start_offset=length(start))
    if end is not None:
        made.end_offset.CopyFrom(length(end))
    return made


def length(seconds: float) -> Duration:
    made = Duration()
    made.FromMilliseconds(round(seconds * 1000))
    return made


def pcm(**fields: Any) -> pb.AudioFormat:
    told: dict[str, Any] = {
        "encoding": pb.RawPcm.ENCODING_S16_LE,
        "sample_rate_hz": 16_000,
        "channel_count": 1,
        **fields,
    }
    return pb.AudioFormat(pcm=pb.RawPcm(**told))


def test_a_config_that_says_nothing_gets_the_defaults():
    assert read() == SpeechOptions(num_beams=FILE_BEAMS)


def test_what_is_said_live_is_heard_greedily_and_told_nothing_unless_asked():
    live = LiveOptions()
    assert read(live=live) == SpeechOptions(live=live, conditions_on_previous=False)
    asked = read(live=live, condition_on_previous_text=True, beam_size=3, voice_activity_filter=True)
    assert asked == SpeechOptions(live=live, num_beams=3)


@pytest.mark.parametrize(
    ("fields", "num_beams"),
    [
        ({"temperature": 0.0}, 1),
        ({"temperature": 0.5}, 1),
        ({"beam_size": 1}, 1),
        ({"beam_size": 3}, 3),
        ({"beam_size": 3, "temperature": 0.0}, 3),
        ({"best_of": 4}, FILE_BEAMS),
        ({"patience": 2.0}, FILE_BEAMS),
        ({"max_alternatives": 1}, FILE_BEAMS),
    ],
)
def test_a_file_is_heard_with_beams_unless_beams_or_a_temperature_are_asked_for(fields: dict[str, Any], num_beams: int):
    assert read(**fields).num_beams == num_beams


@pytest.mark.parametrize(
    ("fields", "named", "kind"),
    [
        ({"voice_activity_filter": False}, "voice_activity_filter", UnsupportedOption),
        ({"clips": [pb.Clip()]}, "clips", UnsupportedOption),
        ({"patience": 2.0}, "patience", InvalidField),
        ({"length_penalty": 0.5}, "length_penalty", InvalidField),
        ({"max_alternatives": 1}, "max_alternatives", InvalidField),
    ],
)
def test_what_cannot_be_live_is_refused_by_name(fields: dict[str, Any], named: str, kind: type[FieldError]):
    error = refused(live=LiveOptions(), **fields)
    assert (type(error), error.field) == (kind, f"config.{named}")


def test_everything_that_is_said_is_honoured():
    options = read(
        format=pcm(encoding=pb.RawPcm.ENCODING_ALAW, sample_rate_hz=8000, channel_count=2, channel_mode=2),
        languages=["en-GB", "de"],
        task=Config.TASK_TRANSLATE_TO_ENGLISH,
        word_timestamps=True,
        initial_prompt="Before.",
        phrases=["Pomona"],
        beam_size=5,
        patience=2.0,
        length_penalty=0.5,
        condition_on_previous_text=False,
        compression_ratio_threshold=3.0,
        avg_logprob_threshold=-2.0,
        no_speech_threshold=0.5,
        voice_activity_filter=False,
        clips=[clip(1, 2), clip(2)],
        max_alternatives=3,
    )
    assert options == SpeechOptions(
        pcm=PcmFormat(Encoding.ALAW, 8000, 2),
        separates=True,
        languages=("en", "de"),
        task=Task.TRANSLATE,
        has_words=True,
        initial_prompt="Before.",
        phrases=("Pomona",),
        num_beams=5,
        patience=2.0,
        length_penalty=0.5,
        conditions_on_previous=False,
        max_compression_ratio=3.0,
        min_avg_logprob=-2.0,
        max_no_speech_prob=0.5,
        filters_voice=False,
        clips=((1.0, 2.0), (2.0, None)),
        max_alternatives=3,
    )


def test_every_field_changes_something():
    """A field that is added to the contract fails here until it is read."""
    fields: dict[str, dict[str, Any]] = {
        "format": {"format": pcm()},
        "languages": {"languages": ["de"]},
        "task": {"task": Config.TASK_TRANSLATE_TO_ENGLISH},
        "word_timestamps": {"word_timestamps": True},
        "initial_prompt": {"initial_prompt": "a"},
        "phrases": {"phrases": ["a"]},
        "temperature": {"temperature": 0.5},
        "beam_size": {"beam_size": 3},
        "best_of": {"best_of": 2},
        "patience": {"beam_size": 2, "patience": 2.0},
        "length_penalty": {"beam_size": 2, "length_penalty": 0.5},
        "condition_on_previous_text": {"condition_on_previous_text": False},
        "compression_ratio_threshold": {"compression_ratio_threshold": 9.0},
        "avg_logprob_threshold": {"avg_logprob_threshold": -9.0},
        "no_speech_threshold": {"no_speech_threshold": 0.9},
        "voice_activity_filter": {"voice_activity_filter": False},
        "clips": {"clips": [clip(1)]},
        "max_alternatives": {"beam_size": 2, "max_alternatives": 1},
    }
    assert set(fields) == {field.name for field in Config.DESCRIPTOR.fields}
    for name, given in fields.items():
        without = {key: value for key, value in given.items() if key != name}
        assert read(**given) != read(**without), name


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", float("nan")),
        ("beam_size", 0),
        ("beam_size", 17),
        ("best_of", 0),
        ("best_of", 17),
        ("compression_ratio_threshold", 0.0),
        ("compression_ratio_threshold", float("inf")),
        ("avg_logprob_threshold", 0.1),
        ("avg_logprob_threshold", float("-inf")),
        ("no_speech_threshold", 1.1),
        ("no_speech_threshold", float("nan")),
        ("max_alternatives", 11),
    ],
)
def test_a_value_out_of_range_is_refused(field: str, value: float):
    fields: dict[str, Any] = {field: value}
    error = refused(**fields)
    assert (type(error), error.field) == (InvalidField, f"config.{field}")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"beam_size": 5, "temperature": 0.5}, "beam_size"),
        ({"best_of": 5, "temperature": 0.0}, "best_of"),
        ({"patience": 1.5, "beam_size": 1}, "patience"),
        ({"patience": 1.5, "temperature": 0.0}, "patience"),
        ({"patience": 0.0, "beam_size": 2}, "patience"),
        ({"patience": 9.0, "beam_size": 2}, "patience"),
        ({"length_penalty": 0.5, "beam_size": 1}, "length_penalty"),
        ({"length_penalty": 1.5, "beam_size": 2}, "length_penalty"),
        ({"max_alternatives": 1, "beam_size": 1}, "max_alternatives"),
        ({"languages": ["xx"]}, "languages[0]"),
        ({"languages": ["en", "tlh"]}, "languages[1]"),
        ({"languages": ["yue"]}, "languages[0]"),
        ({"languages": ["en"] * 257}, "languages"),
        ({"initial_prompt": "x" * 16_385}, "initial_prompt"),
        ({"phrases": ["a"] * 257}, "phrases"),
        ({"phrases": ["a", " "]}, "phrases[1]"),
        ({"phrases": ["x" * 257]}, "phrases[0]"),
        ({"format": pcm(encoding=0)}, "format.pcm.encoding"),
        ({"format": pcm(sample_rate_hz=7999)}, "format.pcm.sample_rate_hz"),
        ({"format": pcm(sample_rate_hz=48_001)}, "format.pcm.sample_rate_hz"),
        ({"format": pcm(channel_count=0)}, "format.pcm.channel_count"),
        ({"format": pcm(channel_count=9)}, "format.pcm.channel_count"),
        ({"clips": [clip(2, 3), clip(1, 2)]}, "clips[1].start_offset"),
        ({"clips": [clip(0, 3), clip(2, 4)]}, "clips[1].start_offset"),
        ({"clips": [clip(0), clip(4)]}, "clips[1].start_offset"),
        ({"clips": [clip(3, 3)]}, "clips[0].end_offset"),
        ({"clips": [clip(-1, 3)]}, "clips[0].start_offset"),
        ({"clips": [clip(101)]}, "clips[0].start_offset"),
        ({"clips": [clip(n / 100, (n + 1) / 100) for n in range(1025)]}, "clips"),
    ],
)
def test_what_cannot_be_is_refused_by_name(fields: dict[str, Any], named: str):
    error = refused(**fields)
    assert (type(error), error.field) == (InvalidField, f"config.{named}")


@pytest.mark.parametrize(
    ("tag", "code"), [("en-US", "en"), ("pt-BR", "pt"), ("zh-Hant", "zh"), ("zh_TW", "zh"), ("jv", "jw"), ("FIL", "tl")]
)
def test_tags_are_the_languages_of_the_model(tag: str, code: str):
    assert read(languages=[tag, tag]).languages == (code,)


def test_a_language_that_the_model_lacks_is_told_with_those_that_it_has():
    assert "en, zh, de" in refused(languages=["tlh"]).description
    assert refused(ENGLISH_ONLY, languages=["de"]).description == "the model does not know 'de'; it has en"


def test_a_server_that_has_few_rows_writes_no_more_texts_of_a_window():
    few, one = replace(FACTS, max_texts=3), replace(FACTS, max_texts=1)
    assert (read(few).num_beams, read(few, beam_size=3).num_beams, read(one).num_beams) == (2, 3, 1)
    for name, error in (("beam_size", refused(few, beam_size=4)), ("best_of", refused(few, best_of=4))):
        assert (type(error), error.field) == (InvalidField, f"config.{name}")
        assert error.description == "the model writes 3 texts at once"


def test_an_english_only_model_is_told_no_language():
    assert read(ENGLISH_ONLY, languages=["en-AU"]).languages == ()


@pytest.mark.parametrize("facts", [ENGLISH_ONLY, TURBO], ids=["English only", "turbo"])
def test_a_model_that_was_not_made_to_translate_refuses(facts: SpeechFacts):
    error = refused(facts, task=Config.TASK_TRANSLATE_TO_ENGLISH)
    assert (type(error), error.field) == (UnsupportedOption, "config.task")
