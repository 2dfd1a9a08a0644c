"""Whether a worker makes progress: plain Python over the times at which it last did."""

import enum
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VitalLimits:
    """How long a worker may be silent.

    Attributes:
        handshake_s: how long a new process may take to answer.
        heartbeat_s: how often a worker reports.
        suspect_after: how many reports may be missed before it gets no new work.
        lost_after: how many reports may be missed before it is given up.
        load_stall_s: how long a load may stand still, from the start of the process on.
        compute_stall_s: how long the compute thread may stand still while requests run.
        step_token_s: how much longer for each token of the step that it computes; a chunk of a prompt is one step.
    """

    handshake_s: float = 30.0
    heartbeat_s: float = 1.0
    suspect_after: int = 3
    lost_after: int = 10
    load_stall_s: float = 30.0
    compute_stall_s: float = 60.0
    step_token_s: float = 0.25


class Verdict(enum.Enum):
    """What is to be thought of a worker."""

    FINE = "fine"
    SUSPECT = "suspect"
    LOST = "no heartbeat"
    LOAD_STALLED = "the load stands still"
    COMPUTE_STALLED = "the compute thread stands still"


@dataclass(frozen=True, slots=True)
class Beat:
    """What a report says of progress.

    Attributes:
        is_ready: the model is loaded.
        load: anything that changes when the load moves.
        compute_ticks: anything that changes when the compute thread moves.
        running_requests: how many requests wait for it.
        step_tokens: of the step that it computes now.
    """

    is_ready: bool = False
    load: object = None
    compute_ticks: int = 0
    running_requests: int = 0
    step_tokens: int = 0


class Vitals:
    """The last signs of life of one worker.

    Time during which this process itself stood still is not held against the worker: whoever asks less often than
    twice a heartbeat was late, and what was missed then could not be seen.
    """

    def __init__(self, limits: VitalLimits, now_s: float) -> None:
        """Begin at the start of the process, at monotonic time `now_s`."""
        self._limits = limits
        self._judged_s = now_s
        self._beat_s = now_s
        self._load_s = now_s
        self._compute_s = now_s
        self._last = Beat()

    def beat(self, beat: Beat, now_s: float) -> None:
        """Note a report."""
        last, self._last = self._last, beat
        self._beat_s = now_s
        if beat.load != last.load:
            self._load_s = now_s
        if beat.compute_ticks != last.compute_ticks or not beat.running_requests or not last.running_requests:
            self._compute_s = now_s

    def judge(self, now_s: float) -> Verdict:
        """Say what is to be thought of the worker; to be asked at least twice a heartbeat."""
        self._forgive(now_s - self._judged_s - self._limits.heartbeat_s)
        self._judged_s = now_s
        if not self._last.is_ready:
            return Verdict.LOAD_STALLED if now_s - self._load_s > self._limits.load_stall_s else Verdict.FINE
        missed = (now_s - self._beat_s) / self._limits.heartbeat_s
        if missed > self._limits.lost_after:
            return Verdict.LOST
        if missed > self._limits.suspect_after:
            return Verdict.SUSPECT
        return Verdict.COMPUTE_STALLED if self._is_compute_stalled(now_s) else Verdict.FINE

    def _is_compute_stalled(self, now_s: float) -> bool:
        limit_s = self._limits.compute_stall_s + self._last.step_tokens * self._limits.step_token_s
        return bool(self._last.running_requests) and now_s - self._compute_s > limit_s

    def _forgive(self, late_s: float) -> None:
        if late_s > 0:
            self._beat_s += late_s
            self._load_s += late_s
            self._compute_s += late_s
