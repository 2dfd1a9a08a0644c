"""Reads the config of a request for speech: every field is honoured, or refused by its name, within a bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.duration_pb2 import Duration
from pomona.v1 import transcription_pb2 as pb

from models.whisper.languages import language_of
from models.whisper.tokenizer import Task
from worker.audio.pcm import MAX_CHANNELS, MAX_RATE_HZ, MIN_RATE_HZ, Encoding, PcmFormat
from worker.errors import InvalidField, UnsupportedOption
from worker.speech.facts import MAX_TEXTS, SpeechFacts
from worker.speech.options import FILE_BEAMS, LiveOptions, SpeechOptions
from worker.speech.tags import tag_of

MAX_PROMPT_BYTES = 16 << 10
MAX_PHRASES, MAX_PHRASE_BYTES = 256, 256
MAX_LANGUAGES = 256
MAX_CLIPS = 1024
MAX_ALTERNATIVES = 10

ENCODINGS: Mapping[int, Encoding] = {
    pb.RawPcm.ENCODING_S16_LE: Encoding.S16_LE,
    pb.RawPcm.ENCODING_F32_LE: Encoding.F32_LE,
    pb.RawPcm.ENCODING_MULAW: Encoding.MULAW,
    pb.RawPcm.ENCODING_ALAW: Encoding.ALAW,
}
# Inclusive, of fields that may be unset; `patience` and `compression_ratio_threshold` may not be 0.
RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0.0, 2.0),
    "beam_size": (1, MAX_TEXTS),
    "best_of": (1, MAX_TEXTS),
    "patience": (0.0, 8.0),
    "length_penalty": (0.0, 1.0),
    "compression_ratio_threshold": (0.0, 100.0),
    "avg_logprob_threshold": (-100.0, 0.0),
    "no_speech_threshold": (0.0, 1.0),
}
_NEVER_ZERO = ("patience", "compression_ratio_threshold")
# Fields whose names here are others, all unset by default.
_NAMES: Mapping[str, str] = {
    "beam_size": "num_beams",
    "best_of": "best_of",
    "patience": "patience",
    "length_penalty": "length_penalty",
    "condition_on_previous_text": "conditions_on_previous",
    "compression_ratio_threshold": "max_compression_ratio",
    "avg_logprob_threshold": "min_avg_logprob",
    "no_speech_threshold": "max_no_speech_prob",
    "voice_activity_filter": "filters_voice",
}


def read_config(
    config: pb.TranscriptionConfig, facts: SpeechFacts, path: str, live: LiveOptions | None = None
) -> SpeechOptions:
    """Check a config.

    Args:
        config: of the request.
        facts: of the model.
        path: of the config in its request.
        live: how the audio is transcribed while it is spoken; None: as a file.

    Raises:
        InvalidField: a value is out of range, contradicts another, or names a language that the model lacks.
        UnsupportedOption: the model cannot do what is asked.
    """
    given: dict[str, Any] = {each.name: value for each, value in config.ListFields()}
    if live is not None:
        _refuse_file_fields(given, path)
    _check_ranges(given, facts, path)
    given = {**_defaults(given, facts, live), **given}
    _check_search(given, path)
    pcm, separates = _read_format(config.format, f"{path}.format")
    return SpeechOptions(
        path=path,
        pcm=pcm,
        separates=separates,
        languages=_read_languages(config.languages, facts, f"{path}.languages"),
        task=_read_task(config, facts, path),
        has_words=config.word_timestamps,
        initial_prompt=_read_text(config.initial_prompt, MAX_PROMPT_BYTES, f"{path}.initial_prompt"),
        phrases=_read_phrases(config.phrases, f"{path}.phrases"),
        clips=_read_clips(config.clips, facts, f"{path}.clips"),
        max_alternatives=_read_alternatives(given, path),
        live=live,
        **({"temperatures": (given["temperature"],)} if "temperature" in given else {}),
        **{name: given[field] for field, name in _NAMES.items() if field in given},
    )


def seconds(duration: Duration) -> float:
    """Return a length of time in seconds."""
    return duration.seconds + duration.nanos / 1e9


def read_seconds(duration: Duration, low: float, high: float, path: str) -> float:
    """Return a length of time within bounds.

    Raises:
        InvalidField: it is outside.
    """
    found = seconds(duration)
    if not low <= found <= high:
        raise InvalidField(path, f"from {low:g} to {high:g} s")
    return found


def _refuse_file_fields(given: Mapping[str, Any], path: str) -> None:
    """Refuse what cannot be while somebody speaks: utterances are what voice detection finds."""
    if "clips" in given:
        raise UnsupportedOption(f"{path}.clips", "only in MODE_FILE")
    if given.get("voice_activity_filter") is False:
        raise UnsupportedOption(f"{path}.voice_activity_filter", "false only in MODE_FILE")


def _defaults(given: Mapping[str, Any], facts: SpeechFacts, live: LiveOptions | None) -> dict[str, Any]:
    """Return what is asked for where nothing is, and depends on the mode."""
    if live is not None:
        return {"condition_on_previous_text": False}
    return {} if "temperature" in given else {"beam_size": min(FILE_BEAMS, facts.max_texts)}


def _check_ranges(given: Mapping[str, Any], facts: SpeechFacts, path: str) -> None:
    for name, (low, high) in RANGES.items():
        # Written so that a NaN is outside.
        if name in given and not low <= given[name] <= high:
            raise InvalidField(f"{path}.{name}", f"from {low:g} to {high:g}")
    for name in _NEVER_ZERO:
        if given.get(name) == 0:
            raise InvalidField(f"{path}.{name}", "above 0")
    for name in ("beam_size", "best_of"):
        if given.get(name, 1) > facts.max_texts:
            raise InvalidField(f"{path}.{name}", f"the model writes {facts.max_texts} texts at once")


def _check_search(given: Mapping[str, Any], path: str) -> None:
    """Refuse ways of searching that exclude each other: beams are of temperature 0, texts by chance of others."""
    temperature = given.get("temperature")
    num_beams, best_of = given.get("beam_size", 1), given.get("best_of", 1)
    if temperature and num_beams > 1:
        raise InvalidField(f"{path}.beam_size", "beams are for temperature 0")
    if temperature == 0 and best_of > 1:
        raise InvalidField(f"{path}.best_of", "at temperature 0 all texts are the same")
    if "patience" in given and num_beams == 1:
        raise InvalidField(f"{path}.patience", "only with a beam_size above 1")
    if "length_penalty" in given and num_beams == 1 and best_of == 1:
        raise InvalidField(f"{path}.length_penalty", "only with a beam_size or a best_of above 1")


def _read_format(message: pb.AudioFormat, path: str) -> tuple[PcmFormat | None, bool]:
    if not message.HasField("pcm"):
        return None, False
    pcm, path = message.pcm, f"{path}.pcm"
    if pcm.encoding not in ENCODINGS:
        raise InvalidField(f"{path}.encoding", "say how samples are written")
    if not MIN_RATE_HZ <= pcm.sample_rate_hz <= MAX_RATE_HZ:
        raise InvalidField(f"{path}.sample_rate_hz", f"from {MIN_RATE_HZ} to {MAX_RATE_HZ}")
    if not 1 <= pcm.channel_count <= MAX_CHANNELS:
        raise InvalidField(f"{path}.channel_count", f"from 1 to {MAX_CHANNELS}")
    separates = pcm.channel_mode == pb.RawPcm.CHANNEL_MODE_SEPARATE
    return PcmFormat(ENCODINGS[pcm.encoding], pcm.sample_rate_hz, pcm.channel_count), separates


def _read_languages(tags: Sequence[str], facts: SpeechFacts, path: str) -> tuple[str, ...]:
    if len(tags) > MAX_LANGUAGES:
        raise InvalidField(path, f"at most {MAX_LANGUAGES}")
    codes: list[str] = []
    for index, tag in enumerate(tags):
        code = language_of(tag, facts.languages)
        if code is None:
            known = ", ".join(map(tag_of, facts.languages))
            raise InvalidField(f"{path}[{index}]", f"the model does not know {tag!r}; it has {known}")
        codes.append(code)
    return tuple(dict.fromkeys(codes)) if facts.is_multilingual else ()


def _read_task(config: pb.TranscriptionConfig, facts: SpeechFacts, path: str) -> Task:
    if config.task != pb.TranscriptionConfig.TASK_TRANSLATE_TO_ENGLISH:
        return Task.TRANSCRIBE
    if not facts.can_translate:
        raise UnsupportedOption(f"{path}.task", "the model was not made to translate")
    return Task.TRANSLATE


def _read_text(text: str, max_bytes: int, path: str) -> str:
    if len(text.encode()) > max_bytes:
        raise InvalidField(path, f"at most {max_bytes} bytes")
    return text


def _read_phrases(phrases: Sequence[str], path: str) -> tuple[str, ...]:
    if len(phrases) > MAX_PHRASES:
        raise InvalidField(path, f"at most {MAX_PHRASES}")
    for index, phrase in enumerate(phrases):
        if not phrase.strip():
            raise InvalidField(f"{path}[{index}]", "the phrase is empty")
        _read_text(phrase, MAX_PHRASE_BYTES, f"{path}[{index}]")
    return tuple(phrases)


def _read_clips(
    clips: Sequence[pb.Clip], facts: SpeechFacts, path: str
) -> tuple[tuple[float, float | None], ...] | None:
    if len(clips) > MAX_CLIPS:
        raise InvalidField(path, f"at most {MAX_CLIPS}")
    found: list[tuple[float, float | None]] = []
    for index, clip in enumerate(clips):
        start = read_seconds(clip.start_offset, 0.0, facts.max_audio_s, f"{path}[{index}].start_offset")
        before = found[-1][1] if found else 0.0
        if before is None or start < before:
            raise InvalidField(f"{path}[{index}].start_offset", "clips come in order and do not overlap")
        end = seconds(clip.end_offset) if clip.HasField("end_offset") else None
        if end is not None and end <= start:
            raise InvalidField(f"{path}[{index}].end_offset", "later than start_offset")
        found.append((start, end))
    return tuple(found) or None


def _read_alternatives(given: Mapping[str, Any], path: str) -> int:
    wanted = given.get("max_alternatives", 0)
    if wanted > MAX_ALTERNATIVES:
        raise InvalidField(f"{path}.max_alternatives", f"from 0 to {MAX_ALTERNATIVES}")
    if wanted and max(given.get("beam_size", 1), given.get("best_of", 1)) == 1:
        raise InvalidField(f"{path}.max_alternatives", "only with a beam_size or a best_of above 1")
    return wanted
