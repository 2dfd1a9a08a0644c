"""Segments of a file as callers are told them: with ids, on the request's clock. Plain Python."""

from __future__ import annotations

from models.whisper.segments import Segment
from models.whisper.words import Word
from worker.events import SegmentEnd, SpeechSegment, SpokenWord
from worker.speech.options import SpeechOptions


class Telling:
    """Counts the segments of a request.

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
        text = segment.text.lstrip() if self._is_start else segment.text
        # The other texts are of a whole window: its first segment has them.
        is_first_of_window = window is not self._last_window
        told = SpeechSegment(
            segment_id=self._next_id,
            start_s=options.time_offset_s + segment.start_s,
            end_s=options.time_offset_s + segment.end_s,
            stable_text=text,
            words=tuple(
                self._word(word, is_start=self._is_start and place == 0) for place, word in enumerate(segment.words)
            ),
            language=language,
            channel=channel,
            avg_logprob=window.avg_logprob,
            no_speech_prob=window.no_speech_prob,
            compression_ratio=window.compression_ratio,
            temperature=window.temperature,
            alternatives=window.alternatives[: options.max_alternatives] if is_first_of_window else (),
            end=SegmentEnd.END_OF_AUDIO if is_last else SegmentEnd.TIMESTAMP,
        )
        self._next_id += 1
        self._is_start = False
        self._last_window = window
        return told

    def _word(self, word: Word, *, is_start: bool) -> SpokenWord:
        offset_s = self._options.time_offset_s
        text = word.text.lstrip() if is_start else word.text
        return SpokenWord(text, offset_s + word.start_s, offset_s + word.end_s, word.probability)
