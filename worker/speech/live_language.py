"""Which language a live stream is in. Plain Python.

What was asked for alone is believed. Otherwise each utterance is listened to, for the first word of a stream may
mislead; but once there is a language, only one that is clearly another takes its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_CLEARLY = 0.8
_MIN_SWITCH_S = 2.0  # of an utterance; less is too little to tell


class LanguageChoice:
    """The language of one stream.

    Args:
        asked: codes of the model's languages; none: any of them.
        known: all languages of the model; none: it is an English-only model.

    Attributes:
        language: of the last text; None: there was none yet, or the model has no languages.
    """

    def __init__(self, asked: Sequence[str], known: Sequence[str]) -> None:
        among = (asked or known) if known else ()
        self._among = tuple(among) if len(among) > 1 else None
        self.language = among[0] if len(among) == 1 else None

    @property
    def among(self) -> Sequence[str] | None:
        """The languages in question; None: there is no question."""
        return self._among

    def choose(self, probabilities: Mapping[str, float] | None, heard_s: float) -> str | None:
        """Return the language to decode an utterance in.

        Args:
            probabilities: of `among`, likeliest first; None where nobody looked.
            heard_s: seconds of the utterance that they are of.
        """
        if not probabilities:
            return self.language
        likeliest, probability = next(iter(probabilities.items()))
        is_clear = probability >= _CLEARLY and heard_s >= _MIN_SWITCH_S
        return likeliest if self.language is None or is_clear else self.language

    def is_sure(self, probabilities: Mapping[str, float] | None, language: str | None, heard_s: float) -> bool:
        """Whether text in this language may become stable: not while so little was heard that another may take over."""
        return not probabilities or next(iter(probabilities)) == language or heard_s >= _MIN_SWITCH_S

    def settle(self, language: str | None) -> bool:
        """Note the language of a text that will not change; return whether it is the first."""
        is_first = self.language is None and language is not None
        if language is not None:
            self.language = language
        return is_first
