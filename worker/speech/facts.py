"""What of a model decides which requests for speech it can serve; imports no MLX."""

from __future__ import annotations

from dataclasses import dataclass

from models.whisper.config import Config
from models.whisper.languages import LANGUAGES

ENGLISH = "en"
# Beams of a search, or texts by chance; memory and time grow with them.
MAX_TEXTS = 16


@dataclass(frozen=True, slots=True)
class SpeechFacts:
    """What a check has to know of a model.

    Attributes:
        languages: its codes; an English-only model's is `en` alone.
        is_multilingual: whether it must be told the language.
        can_translate: whether it was trained to write English of other languages.
        max_audio_s: seconds of audio that a request may bring.
        idle_s: how long the caller of a stream may send nothing, unless it says otherwise.
        max_texts: that may be written of a window side by side.
    """

    languages: tuple[str, ...]
    is_multilingual: bool
    can_translate: bool
    max_audio_s: float
    idle_s: float
    max_texts: int = MAX_TEXTS


def speech_facts(config: Config, max_audio_s: float, idle_s: float, *, max_texts: int = MAX_TEXTS) -> SpeechFacts:
    """Return what a check has to know of a model; see `SpeechFacts`."""
    return SpeechFacts(
        languages=languages_of(config),
        is_multilingual=config.is_multilingual,
        can_translate=can_translate(config),
        max_audio_s=max_audio_s,
        idle_s=idle_s,
        max_texts=min(max_texts, MAX_TEXTS),
    )


def languages_of(config: Config) -> tuple[str, ...]:
    """Return the codes of a model's languages."""
    return LANGUAGES[: config.num_languages] if config.is_multilingual else (ENGLISH,)


def can_translate(config: Config) -> bool:
    """Whether a model was trained to translate: those with a decoder that was cut short, such as turbo, were not."""
    return config.is_multilingual and config.n_text_layer >= config.n_audio_layer
