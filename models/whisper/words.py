"""What the alignment gets wrong about words: punctuation on its own, words that swallow a pause. Plain Python.

Source: OpenAI's whisper, `timing.py`, `add_word_timestamps` and `merge_punctuations`; the numbers are its own.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

BEFORE_WORDS = "\"'“¿([{-"
AFTER_WORDS = "\"'.。,，!！?？:：”)]}、"  # noqa: RUF001 (full-width punctuation is meant)
_SENTENCE_ENDS = ".。!！?？"  # noqa: RUF001
_MAX_MEDIAN_S = 0.7
_PAUSE_MEDIANS = 4  # so many usual words long is a silence before a segment that makes its first word suspicious
_SLACK_S = 0.5  # a segment's time is believed over a word's that lies further out than this


@dataclass(frozen=True, slots=True)
class Word:
    """A word with its place.

    Attributes:
        text: with the space before it.
        tokens: of the text.
        start_s: seconds from the start of the window, or of the recording.
        end_s: the same.
        probability: mean of its tokens'.
    """

    text: str
    tokens: tuple[int, ...]
    start_s: float
    end_s: float
    probability: float

    @property
    def duration_s(self) -> float:
        """How long it takes."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a word usually takes, at most 0.7 seconds, and how long one may be that is believed."""

    median_s: float

    @property
    def max_s(self) -> float:
        """Twice the usual."""
        return 2 * self.median_s


def pace_of(words: Sequence[Word]) -> Pace:
    """Return the pace of a window's words."""
    durations = [word.duration_s for word in words if word.duration_s != 0]
    return Pace(min(_MAX_MEDIAN_S, statistics.median(durations)) if durations else 0.0)


def shorten_at_sentence_ends(words: Sequence[Word], pace: Pace) -> list[Word]:
    """Cut what is too long of a mark that ends a sentence, and of the word after one: there the pauses are."""
    found = list(words)
    if pace.median_s == 0:
        return found
    for place in range(1, len(found)):
        word = found[place]
        if word.duration_s <= pace.max_s:
            continue
        if word.text in _SENTENCE_ENDS:
            found[place] = replace(word, end_s=word.start_s + pace.max_s)
        elif found[place - 1].text in _SENTENCE_ENDS:
            found[place] = replace(word, start_s=word.end_s - pace.max_s)
    return found


def merge_punctuation(words: Sequence[Word], before: str = BEFORE_WORDS, after: str = AFTER_WORDS) -> list[Word]:
    """Give each punctuation mark to the word that it opens or closes; times and probability stay the word's."""
    opened: list[Word] = []
    for word in reversed(words):
        if opened and word.text.startswith(" ") and word.text.strip() in before:
            opened[-1] = _joined(opened[-1], word, opened[-1])
        else:
            opened.append(word)
    closed: list[Word] = []
    for word in reversed(opened):
        if closed and word.text in after and not closed[-1].text.endswith(" "):
            closed[-1] = _joined(closed[-1], closed[-1], word)
        else:
            closed.append(word)
    return closed


def settle(
    words: Sequence[Word], start_s: float, end_s: float, last_speech_s: float, pace: Pace
) -> tuple[list[Word], float, float]:
    """Bring a segment's words and its own times together.

    Args:
        words: of the segment, seconds from the start of the recording.
        start_s: what the segment's own times say.
        end_s: the same.
        last_speech_s: where the word before the segment ends.
        pace: of the window.

    Returns:
        The words, and the segment's start and end.
    """
    found = list(words)
    if not found:
        return found, start_s, end_s
    if found[0].end_s - last_speech_s > _PAUSE_MEDIANS * pace.median_s and _starts_slowly(found, pace):
        if len(found) > 1 and found[1].duration_s > pace.max_s:
            boundary = max(found[1].end_s / 2, found[1].end_s - pace.max_s)
            found[:2] = replace(found[0], end_s=boundary), replace(found[1], start_s=boundary)
        found[0] = replace(found[0], start_s=max(0.0, found[0].end_s - pace.max_s))
    first, last = found[0], found[-1]
    if first.start_s + _SLACK_S < start_s < first.end_s:
        found[0] = replace(first, start_s=max(0.0, min(first.end_s - pace.median_s, start_s)))
    else:
        start_s = first.start_s
    last = found[-1]
    if last.start_s < end_s < last.end_s - _SLACK_S:
        found[-1] = replace(last, end_s=max(last.start_s + pace.median_s, end_s))
    else:
        end_s = last.end_s
    return found, start_s, end_s


def _starts_slowly(words: Sequence[Word], pace: Pace) -> bool:
    first_two_s = words[1].end_s - words[0].start_s if len(words) > 1 else 0.0
    return words[0].duration_s > pace.max_s or first_two_s > 2 * pace.max_s


def _joined(word: Word, first: Word, second: Word) -> Word:
    return replace(word, text=first.text + second.text, tokens=first.tokens + second.tokens)
