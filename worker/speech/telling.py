"""Segments as callers are told them: with ids, on the request's clock. Plain Python."""

from __future__ import annotations

from collections.abc import Sequence

from models.whisper.decoding import WindowText
from models.whisper.segments import Segment
from models.whisper.words import Word
from worker.events import SegmentEnd, SpeechSegment, SpokenWord
from worker.speech.options import SpeechOptions


def told_text(text: str, *, begins: bool) -> str:
    """Return a text so that all of a stream join: but for the one that begins it, each has its space before it."""
    return text.lstrip() if begins else text


def told_words(words: Sequence[Word], offset_s: float, *, begins: bool) -> tuple[SpokenWord, ...]:
    """Return the words of a text, see `told_text`, so many seconds later."""
    return tuple(
        SpokenWord(
            told_text(word.text, begins=begins and place == 0),
            offset_s + word.start_s,
            offset_s + word.end_s,
            word.probability,
        )
        for place, word in enumerate(words)
    )


def told_alternatives(window: WindowText, max_alternatives: int) -> tuple[tuple[str, float], ...]:
    """Return so many at most of a window's other texts, each another: a search finds one with other times too."""
    texts: dict[str, float] = {}
    for text, avg_logprob in window.alternatives:
        if text != window.text:
            texts.setdefault(text, avg_logprob)
    return tuple(texts.items())[:max_alternatives]


class Telling:
    """Counts the segments of a file.

    Args:
        options: of the request.
    """

    def __init__(self, options: SpeechOptions) -> None:
        self._options = options
        self._next_id = options.first_segment_id
        # The text of a stream that goes on from another begins with its space, so that both join.
        self._is_start = options.first_segment_id == 0
        self._last_window: object = None

    def told(self, segment: Segment, channel: int, language: str, *, is_last: bool) -> SpeechSegment:
        """Return what is told of the next segment.

        Args:
            segment: as it was found.
            channel: that it is of.
            language: that it is in.
            is_last: whether none of its channel follows.
        """
        options, window = self._options, segment.window
        # The other texts are of a whole window: its first segment has them.
        is_first_of_window = window is not self._last_window
        told = SpeechSegment(
            segment_id=self._next_id,
            start_s=options.time_offset_s + segment.start_s,
            end_s=options.time_offset_s + segment.end_s,
            stable_text=told_text(segment.text, begins=self._is_start),
            words=told_words(segment.words, options.time_offset_s, begins=self._is_start),
            language=language,
            channel=channel,
            avg_logprob=window.avg_logprob,
            no_speech_prob=window.no_speech_prob,
            compression_ratio=window.compression_ratio,
            temperature=window.temperature,
            alternatives=told_alternatives(window, options.max_alternatives) if is_first_of_window else (),
            end=SegmentEnd.END_OF_AUDIO if is_last else SegmentEnd.TIMESTAMP,
        )
        self._next_id += 1
        self._is_start = False
        self._last_window = window
        return told
