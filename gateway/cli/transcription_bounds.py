"""What a transcription may be asked for, as far as the contract tells: a mistake costs neither a connection nor a load.

What hangs on the model, or on the server's settings, is left to the server.
"""

from collections.abc import Mapping
from typing import Any

from pomona.v1 import transcription_pb2

from gateway.cli.failures import UsageError
from gateway.cli.fields import Number, checked
from gateway.cli.flags import FLAGS

# Inclusive, but for the beginning of those in ABOVE; the last three in seconds.
RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0, 2),
    "beam_size": (1, 16),
    "best_of": (1, 16),
    "patience": (0, 8),
    "length_penalty": (0, 1),
    "compression_ratio_threshold": (0, 100),
    "avg_logprob_threshold": (-100, 0),
    "no_speech_threshold": (0, 1),
    "max_alternatives": (0, 10),
    "utterance_end_silence": (0.1, 10),
    "interim_interval": (0.1, 60),
    "idle_timeout": (0.1, 3600),
}
ABOVE = frozenset({"patience", "compression_ratio_threshold"})
COUNTS: Mapping[str, int] = {"languages": 256, "phrases": 256, "clips": 1024}
MAX_PROMPT_BYTES = 16 << 10
MAX_PHRASE_BYTES = 256
# Of a recording, where neither beams nor a temperature are asked for.
FILE_BEAMS = 2


def within(field: str, value: Number) -> Number:
    """Return a value for `field`, a key of RANGES.

    Raises:
        UsageError: it is out of range; the text names the option.
    """
    least, most = RANGES[field]
    return checked(FLAGS[field], value, most, least, is_open=field in ABOVE)


def check(config: transcription_pb2.StreamTranscriptionConfig) -> None:
    """Refuse what no server of this contract takes, though each number is within its range.

    Raises:
        UsageError: there are too many of something, or one thing excludes another; the text names the option.
    """
    asked = config.transcription
    given: dict[str, Any] = {field.name: value for field, value in asked.ListFields()}
    for name, most in COUNTS.items():
        if len(given.get(name, ())) > most:
            raise UsageError(f"{FLAGS[name]}: more than {most}")
    _check_texts(asked)
    is_live = config.mode == transcription_pb2.StreamTranscriptionConfig.MODE_LIVE
    if is_live:
        _check_live(given)
    _check_search(given, is_live=is_live)


def _check_texts(asked: transcription_pb2.TranscriptionConfig) -> None:
    if len(asked.initial_prompt.encode()) > MAX_PROMPT_BYTES:
        raise UsageError(f"--prompt: more than {MAX_PROMPT_BYTES} bytes")
    for phrase in asked.phrases:
        if not phrase.strip():
            raise UsageError("--phrase: an empty one")
        if len(phrase.encode()) > MAX_PHRASE_BYTES:
            raise UsageError(f"--phrase: {phrase[:20]!r}... is more than {MAX_PHRASE_BYTES} bytes")


def _check_live(given: Mapping[str, Any]) -> None:
    if "clips" in given:
        raise UsageError("--clips: not with --live")
    if given.get("voice_activity_filter") is False:
        raise UsageError("--no-voice-filter: not with --live")


def _check_search(given: Mapping[str, Any], *, is_live: bool) -> None:
    """Refuse ways of choosing a text that exclude each other, or that nothing is chosen by."""
    temperature = given.get("temperature")
    default = 1 if is_live or temperature is not None else FILE_BEAMS
    num_beams, best_of = given.get("beam_size", default), given.get("best_of", 1)
    if temperature and num_beams > 1:
        raise UsageError("--beam: above 1 only at --temperature 0")
    if temperature == 0 and best_of > 1:
        raise UsageError("--best-of: at --temperature 0 all texts are the same")
    if "patience" in given and num_beams == 1:
        raise UsageError("--patience: only with --beam above 1")
    for name in ("length_penalty", "max_alternatives"):
        if name in given and num_beams == best_of == 1:
            raise UsageError(f"{FLAGS[name]}: only with --beam or --best-of above 1")
