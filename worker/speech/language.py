"""The language of a request: asked for, or found in the first window that is heard. Plain Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from models.whisper.tokenizer import WhisperTokenizer
from worker.events import LanguageFound
from worker.speech.facts import ENGLISH
from worker.speech.options import SpeechOptions


class Language:
    """What is known of a request's language.

    Args:
        options: of the request.
        tokenizer: of the model.

    Attributes:
        code: of the language; None while it is to be found, and always in an English-only model.
        is_known: whether windows can be decoded without looking for it.
    """

    def __init__(self, options: SpeechOptions, tokenizer: WhisperTokenizer) -> None:
        self._tokenizer = tokenizer
        self._asked = options.languages
        self.code = options.languages[0] if len(options.languages) == 1 else None
        self.is_known = self.code is not None or not tokenizer.is_multilingual
        self._found: LanguageFound | None = None

    @property
    def candidates(self) -> Sequence[str] | None:
        """Languages in question; None where it is known."""
        if self.is_known:
            return None
        return self._asked or self._tokenizer.languages

    @property
    def told(self) -> str:
        """The code that callers are told; empty while it is not known."""
        return ENGLISH if not self._tokenizer.is_multilingual else self.code or ""

    def settle(self, probabilities: Mapping[str, float]) -> None:
        """Take the likeliest of the candidates."""
        self.code, probability = max(probabilities.items(), key=lambda pair: pair[1])
        self.is_known = True
        self._found = LanguageFound(self.code, probability)

    def take_found(self) -> LanguageFound | None:
        """Return what was found, once."""
        found, self._found = self._found, None
        return found
