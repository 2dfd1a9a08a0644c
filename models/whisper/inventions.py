"""Segments that were invented: words that no mouth could form, with silence around them. Plain Python.

Source: OpenAI's whisper, `transcribe.py`, `hallucination_silence_threshold`; the numbers are its own.
"""

from __future__ import annotations

import string
from collections.abc import Sequence

from models.whisper.words import Word

_NUM_WORDS = 8  # of a segment tell whether it was invented
_LEAST_SCORE = 3.0
_SLACK = 0.01
_MIN_PROBABILITY = 0.15
_MIN_WORD_S = 0.133
_MAX_WORD_S = 2.0
_PER_SHORT_SECOND = 15.0
_EDGE_S = 2.0  # so near an edge of its window nobody can tell what stands beyond


def is_invented(words: Sequence[Word]) -> bool:
    """Whether a segment's words are too unlikely, too short or too long to have been said; False for none."""
    counted = [word for word in words if word.text.strip(string.punctuation + string.whitespace)][:_NUM_WORDS]
    score = sum(_strangeness(word) for word in counted)
    return bool(counted) and (score >= _LEAST_SCORE or score + _SLACK >= len(counted))


def first_invention(
    segments: Sequence[Sequence[Word]], window: tuple[float, float], last_end_s: float, silence_s: float
) -> int | None:
    """Return which of a window's segments is the first that was invented and has silence around it; None: none is.

    Args:
        segments: the words of each; those without words are passed over.
        window: its start and end, seconds from the start of the recording.
        last_end_s: of what was said before the window.
        silence_s: how long a silence is, at least.
    """
    spoken = [(place, words) for place, words in enumerate(segments) if words]
    strange = [is_invented(words) for _, words in spoken]
    for number, (place, words) in enumerate(spoken):
        start_s, end_s = words[0].start_s, words[-1].end_s
        before = start_s - last_end_s > silence_s or start_s < silence_s or start_s - window[0] < _EDGE_S
        following = spoken[number + 1][1][0].start_s if number + 1 < len(spoken) else window[1]
        is_last = number + 1 == len(spoken)
        after = following - end_s > silence_s or (not is_last and strange[number + 1]) or window[1] - end_s < _EDGE_S
        if strange[number] and before and after:
            return place
        last_end_s = end_s
    return None


def _strangeness(word: Word) -> float:
    score = 1.0 if word.probability < _MIN_PROBABILITY else 0.0
    score += max(0.0, _MIN_WORD_S - word.duration_s) * _PER_SHORT_SECOND
    return score + max(0.0, word.duration_s - _MAX_WORD_S)
