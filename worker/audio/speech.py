"""Where somebody speaks: probabilities of speech, chunk after chunk, to stretches with a beginning and an end.

One chunk above the threshold begins a stretch; only silence of some length ends it, and a stretch that is too short was
none. What is told is sure: it does not change any more.

Source of the rules and numbers: Silero Team, Silero VAD, https://github.com/snakers4/silero-vad.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

SAMPLE_RATE_HZ = 16_000
CHUNK_SAMPLES = 512
CHUNK_S = CHUNK_SAMPLES / SAMPLE_RATE_HZ


@dataclass(frozen=True, slots=True)
class SpeechRules:
    """What counts as speech.

    Attributes:
        threshold: a chunk that is as likely as this begins speech, or goes on with it.
        negative_threshold: one that is less likely is silence; between the two it is what was before.
        min_speech_s: shorter stretches are none.
        min_silence_s: shorter silences are none.
        pad_s: by how much a stretch is made longer at each end, as far as it does not reach into the one before.
    """

    threshold: float = 0.5
    negative_threshold: float = 0.35
    min_speech_s: float = 0.25
    min_silence_s: float = 0.1
    pad_s: float = 0.03


@dataclass(frozen=True, slots=True)
class Stretch:
    """Speech from one moment to another, in seconds from the beginning of the recording."""

    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """Somebody has been speaking since then, for long enough to be sure."""

    at_s: float


@dataclass(frozen=True, slots=True)
class SpeechEnded:
    """Nobody has been speaking since then, for long enough to be sure."""

    at_s: float


SpeechEvent = SpeechStarted | SpeechEnded


class SpeechTimeline:
    """What is known so far of where somebody speaks in one recording.

    Args:
        rules: what counts as speech.
    """

    def __init__(self, rules: SpeechRules) -> None:
        self._rules = rules
        self._min_speech = round(rules.min_speech_s * SAMPLE_RATE_HZ)
        self._min_silence = round(rules.min_silence_s * SAMPLE_RATE_HZ)
        self._num_chunks = 0
        self._stretches: list[Stretch] = []
        self._start: int | None = None  # chunk that opened a stretch
        self._silence: int | None = None  # chunk since which the open stretch is silent
        self._is_told = False  # whether the open stretch is long enough
        self._spoken: int | None = None  # chunk behind the last in which somebody spoke
        self._last_end_s = 0.0  # of the last stretch: what was told never changes
        self._ended_s = 0.0  # seconds of all that have ended

    @property
    def heard_s(self) -> float:
        """How far the probabilities go."""
        return self._num_chunks * CHUNK_S

    @property
    def stretches(self) -> tuple[Stretch, ...]:
        """Those that have ended, in order, as far as they are not forgotten."""
        return tuple(self._stretches)

    @property
    def since_s(self) -> float | None:
        """Since when somebody speaks, sure or not; None: nobody does."""
        return None if self._start is None else self._begun_s(self._start)

    @property
    def is_speech(self) -> bool:
        """Whether somebody speaks, and has done so for long enough to be sure."""
        return self._is_told

    @property
    def last_spoken_s(self) -> float | None:
        """The end of the last chunk in which somebody spoke, sure or not; `heard_s` less this is the silence since."""
        return None if self._spoken is None else self._spoken * CHUNK_S

    @property
    def speech_s(self) -> float:
        """Seconds of speech so far, those of a stretch that is sure but open too."""
        is_open = self._is_told and self._start is not None
        return self._ended_s + (self._open_end_s() - self._begun_s(self._start or 0) if is_open else 0.0)

    def add(self, probabilities: Iterable[float]) -> list[SpeechEvent]:
        """Hear more chunks of 32 ms, and return what has become sure.

        Args:
            probabilities: 0 to 1, of the chunks that follow those before.
        """
        events: list[SpeechEvent] = []
        for probability in probabilities:
            self._hear(probability, events)
        return events

    def finish(self, end_s: float) -> list[SpeechEvent]:
        """Say that the recording ends, and return what has become sure.

        Args:
            end_s: where it ends, at most a chunk before what was heard; speech that is open ends there.
        """
        events: list[SpeechEvent] = []
        if self._start is not None:
            self._tell_start(round(end_s * SAMPLE_RATE_HZ), events)
            self._close(end_s, events)
        return events

    def overlaps(self, start_s: float, end_s: float) -> bool:
        """Return whether there is speech between two moments, sure or not, as far as it was heard."""
        spoken = self.next_speech(start_s)
        return spoken is not None and spoken < end_s

    def next_speech(self, after_s: float) -> float | None:
        """Return the first moment from one on at which there is speech, sure or not; None: there is none so far."""
        index = bisect_right(self._stretches, after_s, key=attrgetter("end_s"))
        if index < len(self._stretches):
            return max(self._stretches[index].start_s, after_s)
        since_s = self.since_s
        return max(since_s, after_s) if since_s is not None and after_s < self._open_end_s() else None

    def forget(self, before_s: float) -> None:
        """Let go of stretches that ended by a moment."""
        del self._stretches[: bisect_right(self._stretches, before_s, key=attrgetter("end_s"))]

    def _hear(self, probability: float, events: list[SpeechEvent]) -> None:
        chunk = self._num_chunks
        self._num_chunks += 1
        if probability >= self._rules.threshold:
            self._start = chunk if self._start is None else self._start
            self._silence = None
        elif self._start is None:
            return
        elif probability < self._rules.negative_threshold:
            self._silence = chunk if self._silence is None else self._silence
            # Counted up to the beginning of the chunk, as the source does: one chunk later than might be.
            if (chunk - self._silence) * CHUNK_SAMPLES >= self._min_silence:
                self._close(self._silence * CHUNK_S + self._rules.pad_s, events)
            return
        if self._silence is None:
            self._spoken = self._num_chunks
            self._tell_start(self._num_chunks * CHUNK_SAMPLES, events)

    def _tell_start(self, until: int, events: list[SpeechEvent]) -> None:
        """Tell of the open stretch once it is long enough, up to a sample."""
        if self._start is not None and not self._is_told and until - self._start * CHUNK_SAMPLES > self._min_speech:
            self._is_told = True
            events.append(SpeechStarted(self._begun_s(self._start)))

    def _close(self, end_s: float, events: list[SpeechEvent]) -> None:
        """End the open stretch, or drop it where it was too short."""
        if self._start is not None and self._is_told:
            stretch = Stretch(self._begun_s(self._start), end_s)
            self._stretches.append(stretch)
            self._last_end_s = end_s
            self._ended_s += end_s - stretch.start_s
            events.append(SpeechEnded(end_s))
        self._start = self._silence = None
        self._is_told = False

    def _begun_s(self, chunk: int) -> float:
        return max(chunk * CHUNK_S - self._rules.pad_s, self._last_end_s)

    def _open_end_s(self) -> float:
        """Return where the open stretch would end if nobody spoke again."""
        if self._silence is None:
            return self.heard_s
        return min(self._silence * CHUNK_S + self._rules.pad_s, self.heard_s)
