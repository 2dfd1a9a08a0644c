"""One text request inside the workload: its sequences, and what they share."""

from dataclasses import dataclass, field

from models.blocks import Part
from models.layers.cache import Cache
from worker.events import Usage
from worker.job import Job
from worker.phases import PhaseClock
from worker.row import Row
from worker.sequence import Sequence, State, TextRequest

# From the start of a request to its end: a request is as far as the first of its sequences that has not ended.
_ORDER = (State.DECODING, State.PAUSED, State.PREFILLING, State.QUEUED)


@dataclass(slots=True)
class SequenceGroup:
    """The sequences of one request.

    Attributes:
        job: the request and its reader.
        rows: one for each sequence, in the order of their indices.
        shared: the prompt's blocks while sequences have not started that will begin behind them.
        num_cached: prompt tokens that an earlier request had computed.
        has_started: whether its reader was told that it runs.
        clock: when it entered each phase.
    """

    job: Job[TextRequest]
    rows: list[Row] = field(repr=False)
    shared: list[Part] = field(default_factory=list["Part"])
    num_cached: int = 0
    has_started: bool = False
    clock: PhaseClock = field(default_factory=PhaseClock)

    def __post_init__(self) -> None:
        self.clock.submitted = self.job.submitted

    @property
    def is_complete(self) -> bool:
        """Whether all its sequences have ended."""
        return all(row.sequence.state is State.ENDED for row in self.rows)

    @property
    def state(self) -> State:
        """How far the most advanced of its sequences is that has not ended."""
        states = {row.sequence.state for row in self.rows}
        return next((state for state in _ORDER if state in states), State.ENDED)

    @property
    def usage(self) -> Usage:
        """Tokens computed so far."""
        sequences = [row.sequence for row in self.rows]
        return Usage(
            prompt_tokens=len(self.job.request.prompt_ids),
            completion_tokens=sum(len(sequence.output_ids) for sequence in sequences),
            cached_prompt_tokens=self.num_cached,
            drafted_tokens=sum(sequence.num_drafted for sequence in sequences),
            accepted_draft_tokens=sum(sequence.num_accepted for sequence in sequences),
            reasoning_tokens=sum(sequence.num_reasoning for sequence in sequences),
            forced_tokens=sum(sequence.num_forced for sequence in sequences),
        )

    def row(self, sequence: Sequence) -> Row:
        """Return the row of one of its sequences."""
        return self.rows[sequence.index]

    def note_start(self, sequence: Sequence, now: float) -> None:
        """Note that a sequence has its slot, and begins behind `prefilled` tokens."""
        if sequence.leader is None:
            self.num_cached = sequence.prefilled
            self.clock.started = now
        self.let_go()

    def share(self, cache: Cache, slot: int) -> None:
        """Keep the prompt's blocks for the sequences that follow, until the last of them has started."""
        if len(self.rows) > 1:
            self.shared = cache.lend(slot)

    def let_go(self) -> None:
        """Give the shared blocks back once nobody will start behind them."""
        if all(row.sequence.slot is not None or row.sequence.state is State.ENDED for row in self.rows):
            self.drop_shared()

    def drop_shared(self) -> None:
        """Give the shared blocks back: who starts later computes the prompt anew."""
        for part in self.shared:
            part.drop()
        self.shared = []
