"""What a soak must show, each as a verdict over what became of all requests."""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from bench.load.unruly import NEVER_ENDED, Ended, Played, Temper

MIB = 1 << 20
# RESOURCE_EXHAUSTED: the queue was full, or the client did not take its stream for too long.
EXPECTED: dict[Temper, frozenset[str]] = {
    "plain": frozenset({"OK", "RESOURCE_EXHAUSTED"}),
    "cancels": frozenset({"OK", "RESOURCE_EXHAUSTED", "CANCELLED"}),
    "deadline": frozenset({"OK", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"}),
    "slow": frozenset({"OK", "RESOURCE_EXHAUSTED"}),
    "halting": frozenset({"OK", "RESOURCE_EXHAUSTED"}),
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """One of them.

    Attributes:
        check: what must hold.
        holds: whether it does.
        detail: the figure behind it.
    """

    check: str
    holds: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is allowed.

    Attributes:
        stall_s: the longest wait for an event of an admitted request.
        settle_s: memory may grow for so long.
        growth_bytes: and by so much after it, besides the caches.
    """

    stall_s: float
    settle_s: float
    growth_bytes: int


def judge(played: Played, bounds: Bounds) -> list[Verdict]:
    """Return every verdict."""
    requests = played.requests
    return [
        _answered(requests),
        _ended(requests),
        _statuses(requests),
        _stalls(requests, bounds.stall_s),
        _contract(requests),
        _memory(played.memory, bounds),
    ]


def _answered(requests: Sequence[Ended]) -> Verdict:
    tokens = sum(request.num_tokens for request in requests)
    started = sum(request.is_started for request in requests)
    return Verdict(
        "there were requests, and tokens", tokens > 0, f"{len(requests)}, {started} admitted, {tokens} tokens"
    )


def _ended(requests: Sequence[Ended]) -> Verdict:
    left = [request for request in requests if request.status == NEVER_ENDED]
    return Verdict("every stream ended in a status", not left, f"{len(left)} of {len(requests)} did not")


def _statuses(requests: Sequence[Ended]) -> Verdict:
    strange = Counter(
        f"{request.temper}: {request.status}"
        for request in requests
        if request.status not in EXPECTED[request.temper] and request.status != NEVER_ENDED
    )
    return Verdict(
        "every status is one that its client expects", not strange, ", ".join(map(str, strange.items())) or "-"
    )


def _stalls(requests: Sequence[Ended], stall_s: float) -> Verdict:
    longest = max((request.longest_wait_s for request in requests), default=0.0)
    count = sum(request.longest_wait_s > stall_s for request in requests)
    detail = f"the longest wait was {longest:.2f} s; {count} waited longer than {stall_s:g} s"
    return Verdict(f"no admitted request waits {stall_s:g} s for an event", count == 0, detail)


def _contract(requests: Sequence[Ended]) -> Verdict:
    faults = Counter(fault for request in requests for fault in request.faults)
    detail = "; ".join(f"{fault} ({count})" for fault, count in faults.most_common(5)) or "-"
    return Verdict("event numbers have no gap and no repeat, and streams keep to the contract", not faults, detail)


def _memory(samples: Sequence[tuple[float, int, int]], bounds: Bounds) -> Verdict:
    """Compare the end with the second half of the time to settle, each by its median, without what caches report."""
    check = "the worker does not grow once settled, besides its caches"
    last_s = samples[-1][0] if samples else 0.0
    span_s = bounds.settle_s / 2
    settled = [own for moment, own in _own(samples) if span_s <= moment <= bounds.settle_s]
    final = [own for moment, own in _own(samples) if moment >= max(last_s - span_s, bounds.settle_s)]
    if not settled or not final:
        return Verdict(check, False, "there are too few samples")
    before, after = statistics.median(settled), statistics.median(final)
    detail = (
        f"{before / MIB:.1f} MiB settled, {after / MIB:.1f} MiB at the end, {bounds.growth_bytes / MIB:g} MiB allowed"
    )
    return Verdict(check, after - before <= bounds.growth_bytes, detail)


def _own(samples: Sequence[tuple[float, int, int]]) -> list[tuple[float, int]]:
    """Return moments and bytes without the caches; those without a measurement are left out."""
    return [(moment, footprint - caches) for moment, footprint, caches in samples if footprint]
