"""Where utterances begin and end, by the probabilities of a voice detector as they come. Plain Python.

Places are samples from the start of the audio, 16,000 a second. An utterance ends with the silence that was asked for.
One that gets long ends in ever shorter pauses instead, for what is heard again and again must stay short; one without
any pause is cut, and the next begins right there.
"""

from __future__ import annotations

from dataclasses import dataclass

from worker.events import SegmentEnd

CHUNK = 512  # samples of one probability
_RATE_HZ = 16_000
_SPEECH = 0.5
_STILL_SPEECH = 0.35
_MIN_SPEECH = _RATE_HZ // 4
_MIN_SILENCE = _RATE_HZ // 10
_LEAD = _RATE_HZ // 4  # heard before the speech: its first sound is often below the detector's threshold
TAIL = 3 * CHUNK  # heard behind it, for the same reason
_LONG = 12 * _RATE_HZ  # from here on shorter pauses end an utterance,
_TOO_LONG = 20 * _RATE_HZ  # until here any pause does
MAX_LENGTH = 24 * _RATE_HZ  # the next utterance may begin some seconds before the cut, and a window has 30


@dataclass(slots=True, eq=False)
class Turn:
    """The audio of an utterance.

    Attributes:
        start: where to hear from.
        speech_start: where the speech begins.
        speech_end: where it ends as far as is known.
        end: where to hear to; None while it goes on.
        reason: why it ended.
        is_cut: whether it was cut where speech went on; the next turn has begun at its end.
    """

    start: int
    speech_start: int
    speech_end: int
    end: int | None = None
    reason: SegmentEnd | None = None
    is_cut: bool = False

    @property
    def needed(self) -> int:
        """Up to where it must be heard, as far as is known, so that no speech is left out."""
        return self.speech_end + TAIL if self.end is None else min(self.speech_end + TAIL, self.end)


class Turns:
    """Finds turns, one after the other.

    Args:
        end_silence: samples of silence that end an utterance.

    Attributes:
        position: up to where the audio was judged.
        current: the turn that goes on.
        begun: turns that began since the caller last emptied this.
        changes: where somebody began (True) and ceased (False) to speak, since the caller last emptied this.
        speech: samples of speech altogether.
    """

    def __init__(self, end_silence: int) -> None:
        self._end_silence = end_silence
        self._free_from = 0  # what lies before is another turn's
        self._run_start: int | None = None  # of speech that may still be too short to be any
        self._run_speech = 0
        self._speech_end = 0
        self._is_speaking = False
        self.position = 0
        self.current: Turn | None = None
        self.begun: list[Turn] = []
        self.changes: list[tuple[bool, int]] = []
        self.speech = 0

    @property
    def silence(self) -> int:
        """Samples since the last speech."""
        return self.position - self._speech_end

    @property
    def floor(self) -> int:
        """Before this no turn that is yet to begin, or goes on, needs audio."""
        if self.current is not None:
            return self.current.start
        start = self.position if self._run_start is None else self._run_start
        return max(self._free_from, start - _LEAD)

    def judge(self, probability: float) -> None:
        """Take the probability that somebody speaks in the next chunk."""
        start, self.position = self.position, self.position + CHUNK
        goes_on = self._run_start is not None and self._speech_end == start
        if probability >= _SPEECH or (goes_on and probability >= _STILL_SPEECH):
            self._add_speech(start)
        elif self.current is None and self._run_start is not None and self.silence >= _MIN_SILENCE:
            self._run_start = None
        self._end_where_due()

    def pass_silence(self, num_chunks: int) -> None:
        """Take chunks in which there is nothing at all; any number costs the same."""
        for done in range(num_chunks):
            if self.current is None and self._run_start is None and not self._is_speaking:
                self.position += (num_chunks - done) * CHUNK
                return
            self.judge(0.0)

    def finalize(self, place: int) -> None:
        """End the turn that goes on because the caller wants it; what is said from there on is another's."""
        self._end(place, SegmentEnd.CLIENT_FINALIZED)
        if self._run_start is not None:
            self._run_start, self._run_speech = (place, 0) if self.silence < CHUNK else (None, 0)
        self._free_from = max(self._free_from, place)

    def finish(self, num_samples: int) -> None:
        """End everything: the audio has so many samples, maybe fewer than were judged."""
        if self.current is not None:
            self.speech -= max(0, self.current.speech_end - num_samples)
        self._end(num_samples, SegmentEnd.END_OF_AUDIO)
        self._run_start = None
        if self._is_speaking:
            self._change(is_speech=False, place=min(self._speech_end, num_samples))

    def cut(self) -> None:
        """End the turn that goes on where it is, and begin the next one there."""
        turn, place = self.current, self.position
        if turn is None:
            return
        self._end(place, SegmentEnd.MAX_LENGTH)
        turn.is_cut = True
        self._run_start, self._run_speech = place, 0
        self._begin(Turn(place, place, place))

    def _add_speech(self, start: int) -> None:
        if self._run_start is None:
            self._run_start, self._run_speech = start, 0
        self._speech_end = self.position
        self._run_speech += CHUNK
        if self.current is not None:
            self.current.speech_end = self.position
            self.speech += CHUNK
        elif self._run_speech >= _MIN_SPEECH:
            self.speech += self._run_speech
            if not self._is_speaking:
                self._change(is_speech=True, place=self._run_start)
            lead = max(self._free_from, self._run_start - _LEAD)
            self._begin(Turn(lead, self._run_start, self.position))

    def _begin(self, turn: Turn) -> None:
        self.current = turn
        self.begun.append(turn)

    def _end_where_due(self) -> None:
        turn = self.current
        if turn is not None and self.silence >= self._needed_silence(self.position - turn.start):
            is_asked = self.silence >= self._end_silence
            self._end(self.position, SegmentEnd.SILENCE if is_asked else SegmentEnd.MAX_LENGTH)
            self._run_start = None
        elif turn is not None and self.position - turn.start >= MAX_LENGTH:
            self.cut()
        if self._is_speaking and self.silence >= self._end_silence:
            self._change(is_speech=False, place=self._speech_end)

    def _needed_silence(self, length: int) -> int:
        """Return the silence that ends an utterance of so many samples."""
        shortest = min(self._end_silence, _MIN_SILENCE)
        share = min(1.0, max(0.0, (length - _LONG) / (_TOO_LONG - _LONG)))
        return round(self._end_silence + share * (shortest - self._end_silence))

    def _end(self, place: int, reason: SegmentEnd) -> None:
        turn, self.current = self.current, None
        if turn is None:
            return
        turn.end, turn.reason = place, reason
        turn.speech_end = min(turn.speech_end, place)
        is_over = reason in (SegmentEnd.SILENCE, SegmentEnd.MAX_LENGTH)
        self._free_from = min(place, turn.speech_end + TAIL) if is_over else place

    def _change(self, *, is_speech: bool, place: int) -> None:
        self._is_speaking = is_speech
        self.changes.append((is_speech, place))
