"""What a text workload counts and times; plain Python. Written on the engine's thread, read anywhere."""

from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from worker.histogram import Histogram
from worker.job import Counts, Durations
from worker.phases import PhaseClock
from worker.row import Row
from worker.sequence import Sequence

# Rates forget half of what is older than so much work.
RATE_MEMORY_S = 10.0


@dataclass(slots=True)
class Rate:
    """Tokens a second of the time that was spent on them lately."""

    num_tokens: float = 0.0
    seconds: float = 0.0

    def add(self, num_tokens: int, seconds: float) -> None:
        """Take work that is done."""
        self.num_tokens += num_tokens
        self.seconds += seconds
        if self.seconds > RATE_MEMORY_S:
            self.num_tokens, self.seconds = self.num_tokens / 2, self.seconds / 2

    @property
    def tokens_per_second(self) -> float:
        """The rate; 0 before any work."""
        return self.num_tokens / self.seconds if self.seconds else 0.0


@dataclass(slots=True)
class TextStats:
    """Totals since the load.

    Attributes:
        step_tokens: of the step that is computed now; 0 between steps.
        queue: from a request's arrival to its start.
        first_token: from a request's arrival to its first token.
        token_gap: between two tokens of one sequence.
    """

    prompt_tokens_total: int = 0
    cached_prompt_tokens_total: int = 0
    completion_tokens_total: int = 0
    drafted_tokens_total: int = 0
    accepted_draft_tokens_total: int = 0
    step_tokens: int = 0
    prefill: Rate = field(default_factory=Rate)
    decode: Rate = field(default_factory=Rate)
    queue: Histogram = field(default_factory=lambda: Histogram("queue"))
    first_token: Histogram = field(default_factory=lambda: Histogram("time_to_first_token"))
    token_gap: Histogram = field(default_factory=lambda: Histogram("inter_token_gap"))

    def counts(self, running: int, queued: int) -> Counts:
        """Return everything that is counted here, beside what the scheduler holds."""
        return Counts(
            running=running,
            queued=queued,
            prompt_tokens_total=self.prompt_tokens_total,
            cached_prompt_tokens_total=self.cached_prompt_tokens_total,
            completion_tokens_total=self.completion_tokens_total,
            drafted_tokens_total=self.drafted_tokens_total,
            accepted_draft_tokens_total=self.accepted_draft_tokens_total,
            step_tokens=self.step_tokens,
            prefill_tokens_per_second=self.prefill.tokens_per_second,
            decode_tokens_per_second=self.decode.tokens_per_second,
            durations=self._durations(),
        )

    def note_start(self, clock: PhaseClock, num_cached: int) -> None:
        """Count a request that has got its slot, and what it found of its prompt."""
        self.cached_prompt_tokens_total += num_cached
        self.prompt_tokens_total += num_cached
        if clock.started is not None:
            self.queue.add(clock.started - clock.submitted)

    def note_prefill(self, num_tokens: int, seconds: float) -> None:
        """Count prompt tokens that were computed."""
        self.prompt_tokens_total += num_tokens
        self.prefill.add(num_tokens, seconds)

    def note_tokens(self, clock: PhaseClock, row: Row, num_tokens: int, now: float) -> None:
        """Count tokens that a row's reader is about to get."""
        self.completion_tokens_total += num_tokens
        if clock.first_token is None:
            clock.first_token = now
            self.first_token.add(now - clock.submitted)
        if row.last_read is not None:
            self.token_gap.add(now - row.last_read)
        row.last_read = now

    def note_end(self, sequence: Sequence) -> None:
        """Count the guesses of a sequence that has ended."""
        self.drafted_tokens_total += sequence.num_drafted
        self.accepted_draft_tokens_total += sequence.num_accepted

    def _durations(self) -> tuple[Durations, ...]:
        histograms: Items[Histogram] = (self.queue, self.first_token, self.token_gap)
        return tuple(histogram.snapshot() for histogram in histograms)
