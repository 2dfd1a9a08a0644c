"""What a workload of speech counts and times; plain Python. Written on the engine's thread, read anywhere."""

from __future__ import annotations

from dataclasses import dataclass, field

from worker.histogram import Histogram
from worker.job import Counts
from worker.phases import PhaseClock
from worker.stats import Rate


@dataclass(slots=True)
class SpeechStats:
    """Totals since the load.

    Attributes:
        audio_s_total: of requests that ended; that of running ones comes beside it.
        step_tokens: of what is computed now; 0 between steps.
        queue: from a request's arrival to its first window.
        first_segment: from a request's arrival to its first segment.
    """

    decoded_tokens_total: int = 0
    audio_s_total: float = 0.0
    step_tokens: int = 0
    decode: Rate = field(default_factory=Rate)
    queue: Histogram = field(default_factory=lambda: Histogram("queue"))
    first_segment: Histogram = field(default_factory=lambda: Histogram("time_to_first_segment"))

    def counts(self, running: int, queued: int, cache_bytes: int) -> Counts:
        """Return everything that is counted here, beside what the workload holds."""
        return Counts(
            running=running,
            queued=queued,
            completion_tokens_total=self.decoded_tokens_total,
            audio_us_total=round(self.audio_s_total * 1e6),
            step_tokens=self.step_tokens,
            cache_bytes=cache_bytes,
            decode_tokens_per_second=self.decode.tokens_per_second,
            durations=(self.queue.snapshot(), self.first_segment.snapshot()),
        )

    def note_start(self, clock: PhaseClock, now: float) -> None:
        """Time a request that has its first window."""
        if clock.started is None:
            clock.started = now
            self.queue.add(now - clock.submitted)

    def note_tokens(self, num_tokens: int, seconds: float) -> None:
        """Count tokens that a step wrote."""
        self.decoded_tokens_total += num_tokens
        self.decode.add(num_tokens, seconds)
