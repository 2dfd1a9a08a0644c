"""What holding experts outside memory costs: counted on the engine's thread, read by any; plain Python."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from models.experts.options import ExpertsMode


def _nothing() -> None:
    """Do so, for what holds nothing."""


@dataclass(slots=True)
class ExpertAccount:
    """Totals since the model was ready: what a load reads, ahead or to warm up, is in none of them.

    An expert of a layer that several tokens of a step share counts once in that step.

    Attributes:
        hits_total: experts that were routed to and lay in memory.
        misses_total: experts that were routed to and had to be read.
        evictions_total: experts that had to go for others.
        bytes_read_total: that reads of experts brought.
        stall_ns_total: how long steps waited for reads, in nanoseconds.
    """

    hits_total: int = 0
    misses_total: int = 0
    evictions_total: int = 0
    bytes_read_total: int = 0
    stall_ns_total: int = 0

    def reset(self) -> None:
        """Begin anew."""
        self.hits_total = self.misses_total = self.evictions_total = 0
        self.bytes_read_total = self.stall_ns_total = 0

    @property
    def hit_ratio(self) -> float:
        """The share of routed experts that lay in memory, 0 to 1; 1 before any was routed to."""
        hits, misses = self.hits_total, self.misses_total
        return hits / (hits + misses) if hits + misses else 1.0

    @property
    def stall_us_total(self) -> int:
        """How long steps waited for reads, in whole microseconds."""
        return self.stall_ns_total // 1000


@dataclass(frozen=True, slots=True)
class HeldExperts:
    """How a loaded model holds its routed experts; belongs to the engine's thread, but for the account.

    Attributes:
        mode: where they lie.
        total_bytes: of all of them, as they lie on the disk.
        budget_bytes: what the slabs may take; 0 in other modes.
        slab_bytes: what they do take.
        resident_bytes: of experts that are in memory for good: all, or what of a mapped pack had to be converted.
        mapped_bytes: of the pack's file that is mapped.
        account: what reading them costs; slab mode alone writes it.
        forget: takes what was counted until now for none, in the account and of use; for what warms up.
        close: ends reads, keeps what is known of use, and finishes a trace; a second call does nothing.
    """

    mode: ExpertsMode
    total_bytes: int
    budget_bytes: int = 0
    slab_bytes: int = 0
    resident_bytes: int = 0
    mapped_bytes: int = 0
    account: ExpertAccount = field(default_factory=ExpertAccount)
    forget: Callable[[], None] = _nothing
    close: Callable[[], None] = _nothing
