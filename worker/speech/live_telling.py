"""What the caller of a live stream is told: events in the stream's own clock and numbers. Plain Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from models.whisper.words import Word
from worker.events import LanguageFound, SpeechEvent, SpeechSegment, VoiceChange
from worker.speech.language import ENGLISH
from worker.speech.live_utterance import Utterance
from worker.speech.live_words import placed_words
from worker.speech.options import SpeechOptions
from worker.speech.telling import told_alternatives, told_text, told_words

_RATE_HZ = 16_000


@dataclass(slots=True)
class Ledger:
    """What the channels of one stream share.

    Attributes:
        next_id: of segments.
        is_begun: whether the stream has a final text. One that goes on from another has, so that both join.
        num_channels: that there are.
        events: that nobody took yet.
    """

    next_id: int
    is_begun: bool
    num_channels: int = 1
    events: list[SpeechEvent] = field(default_factory=list[SpeechEvent])


class Teller:
    """Tells of one channel.

    Args:
        ledger: where to write.
        channel: its number.
        options: of the request.
        decode: makes text of tokens.
    """

    def __init__(
        self, ledger: Ledger, channel: int, options: SpeechOptions, decode: Callable[[Sequence[int]], str]
    ) -> None:
        self._ledger = ledger
        self._channel = channel
        self._options = options
        self._decode = decode
        self._last_end_s = 0.0  # of the recording, as all that follows until it is told

    def tell_voice(self, is_speech: bool, place: int) -> None:
        """Tell that somebody began or ceased to speak at a sample."""
        self._ledger.events.append(VoiceChange(is_speech, self._told(place / _RATE_HZ)))

    def tell_language(self, language: str, probability: float) -> None:
        """Tell that the language of the stream was found."""
        self._ledger.events.append(LanguageFound(language, probability))

    def tell_interim(self, utterance: Utterance) -> bool:
        """Tell what is known of an utterance so far; return whether that is anything new."""
        heard, ledger = utterance.heard, self._ledger
        # Of two channels nobody knows whose text will be the first, without a space before it.
        may_change = not ledger.is_begun and ledger.num_channels > 1
        stable = "" if may_change else self._text(utterance.agreement.tokens)
        unstable = self._text(utterance.said())[len(stable) :]
        if heard is None or utterance.told == (stable, unstable):
            return False
        start_s, end_s = self._bounds(utterance, min(heard.stop, utterance.turn.speech_end))
        self._add(
            SpeechSegment(
                segment_id=self._id(utterance),
                start_s=self._told(start_s),
                end_s=self._told(end_s),
                stable_text=stable,
                unstable_text=unstable,
                is_final=False,
                revision=utterance.revision,
                language=_language(utterance),
                channel=self._channel,
            ),
            utterance,
        )
        return True

    def tell_final(self, utterance: Utterance, tokens: Sequence[int], words: Sequence[Word]) -> None:
        """Tell what was said in an utterance; nothing where that is nothing and nobody was told otherwise.

        Args:
            utterance: that has ended.
            tokens: of its text.
            words: of it, as the alignment found them; none where nobody asked.
        """
        if not tokens and utterance.segment_id is None:
            return
        turn, heard = utterance.turn, utterance.heard
        start_s, end_s = self._bounds(utterance, turn.speech_end)
        placed = placed_words(words, len(tokens), turn.start / _RATE_HZ, (start_s, end_s), self._last_end_s)
        start_s = min([start_s, *(word.start_s for word in placed[:1])])
        window = heard.text if heard is not None else None
        text = self._text(tokens)
        segment = SpeechSegment(
            segment_id=self._id(utterance),
            start_s=self._told(start_s),
            end_s=self._told(end_s),
            stable_text=text,
            revision=utterance.revision,
            words=told_words(placed, self._options.time_offset_s, begins=not self._ledger.is_begun),
            language=_language(utterance),
            channel=self._channel,
            avg_logprob=None if window is None else window.avg_logprob,
            no_speech_prob=None if window is None else window.no_speech_prob,
            compression_ratio=None if window is None else window.compression_ratio,
            temperature=None if window is None else window.temperature,
            alternatives=() if window is None else told_alternatives(window, self._options.max_alternatives),
            end=turn.reason,
        )
        self._add(segment, utterance)
        self._last_end_s = end_s
        self._ledger.is_begun |= bool(text)

    def _add(self, segment: SpeechSegment, utterance: Utterance) -> None:
        self._ledger.events.append(segment)
        utterance.revision += 1
        utterance.told = segment.stable_text, segment.unstable_text

    def _id(self, utterance: Utterance) -> int:
        if utterance.segment_id is None:
            utterance.segment_id = self._ledger.next_id
            self._ledger.next_id += 1
        return utterance.segment_id

    def _bounds(self, utterance: Utterance, end: int) -> tuple[float, float]:
        start_s = max(utterance.turn.speech_start / _RATE_HZ, self._last_end_s)
        return start_s, max(end / _RATE_HZ, start_s)

    def _text(self, tokens: Sequence[int]) -> str:
        return told_text(self._decode(tokens), begins=not self._ledger.is_begun)

    def _told(self, seconds: float) -> float:
        return self._options.time_offset_s + seconds


def _language(utterance: Utterance) -> str:
    """Return the code that callers are told; a model that needs none is English."""
    heard = utterance.heard
    return utterance.language or (heard.language if heard is not None else None) or ENGLISH
