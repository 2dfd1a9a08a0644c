"""Whose turn it is on a device that several workers share: plain Python, with neither sockets nor a clock.

At most one worker holds the device. Whoever has used it least is next. What is more urgent has a head start, which is
bounded: it decides who goes first, not who gets more. So those who want the device all the time have even shares of its
time, those who want it now and then have it soon, and nobody starves: while a worker waits, each other one is served
before it for no longer than `DEBT_S`, `CREDIT_S`, the greatest head start and one burst together.

Source: Duda and Cheriton 1999, "Borrowed-Virtual-Time (BVT) scheduling", SOSP 17.
"""

import enum
import math
from dataclasses import dataclass, field

# By claim.
HEAD_START_S = (0.2, 0.1, 0.0)
# What a worker that did not want the device for a while is ahead of the others when it comes back.
CREDIT_S = 0.1
# What a long step can cost later; the rest of it is forgiven, or its worker would wait as long as it has held.
DEBT_S = 1.0
# So long after another's turn a worker still keeps its steps short.
COMPANY_S = 1.0
# A holder that is wanted back is reminded so often, and tells each time how long its step may take.
REMIND_S = 1.0
MAX_ALLOWANCE_S = 600.0


class Claim(enum.IntEnum):
    """How urgent the work is that a worker wants to do; the numbers are those of the wire."""

    LIVE = 0
    """Somebody listens while it is spoken."""
    STEADY = 1
    """A stream is running, or the work is short."""
    BULK = 2
    """Prompts, batches."""


class TurnError(Exception):
    """Raised when a worker breaks the rules: it gives back what it does not hold, or claims what there is not."""


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """How long turns last, in seconds.

    Attributes:
        burst_s: of work, while others wait.
        hold_s: until a holder that is wanted back, and has declared nothing longer, counts as stuck.
    """

    burst_s: float = 0.02
    hold_s: float = 10.0


@dataclass(slots=True, eq=False)
class Member:
    """A worker that takes turns. Only `Turns` changes it.

    Attributes:
        name: for people.
        used_s: what it has used, in seconds of a clock that is common to all members.
        claim: of what it waits with or holds the device for.
        waiting_since_s: None: it does not wait.
        lease: number of the turn that it holds; None: it holds none.
        granted_s: since when.
        recalled_s: since when others wait for what it holds; None: nobody does.
        due_s: when it must have given back.
        remind_s: when it is to be asked again.
        held_until_s: end of its last turn.
        is_out: it gets no more turns; one that it holds ends with its process.
        is_told: that it is stuck was told.
    """

    name: str
    used_s: float = -math.inf
    claim: Claim = Claim.BULK
    waiting_since_s: float | None = None
    lease: int | None = None
    granted_s: float = 0.0
    recalled_s: float | None = None
    due_s: float = math.inf
    remind_s: float = math.inf
    held_until_s: float = -math.inf
    is_out: bool = False
    is_told: bool = False


@dataclass(frozen=True, slots=True)
class Grant:
    """A member is to be told that it holds the device.

    Attributes:
        is_wanted: others wait already: it is to give back after one burst, unasked.
        has_company: others had turns lately: its steps are to be short.
        has_others: there are others that may want a turn: its steps are not to be very long.
    """

    member: Member
    lease: int
    is_wanted: bool
    has_company: bool
    has_others: bool = False


@dataclass(frozen=True, slots=True)
class Recall:
    """The holder is to be told that others wait."""

    member: Member
    lease: int


@dataclass(frozen=True, slots=True)
class Stuck:
    """The holder did not give back in time, and must be ended."""

    member: Member


Order = Grant | Recall | Stuck


@dataclass(slots=True)
class Turns:
    """The turns of all members of one device. Times are in seconds of any monotonic clock.

    Attributes:
        limits: of turns.
        holder: who has the device.
    """

    limits: TurnLimits = field(default_factory=TurnLimits)
    holder: Member | None = None
    _members: dict[Member, None] = field(default_factory=dict[Member, None])
    _clock_s: float = 0.0  # the least that one of those who want the device has used; never goes back
    _num_leases: int = 0

    @property
    def num_waiting(self) -> int:
        """How many wait."""
        return sum(member.waiting_since_s is not None for member in self._members)

    def join(self, name: str) -> Member:
        """Take a worker in."""
        member = Member(name)
        self._members[member] = None
        return member

    def want(self, member: Member, claim: Claim, now_s: float) -> list[Order]:
        """Let a member wait for the device; one that waits already may say that its work is more urgent by now."""
        if member.is_out or member.lease is not None or member not in self._members:
            return []  # what it says crossed with what it was told
        if member.waiting_since_s is not None:
            member.claim = claim
            return []
        self._advance(now_s)
        self._wait(member, claim, now_s)
        return self._next(now_s)

    def release(
        self, member: Member, lease: int, now_s: float, again: Claim | None = None, used_s: float = math.inf
    ) -> list[Order]:
        """Take a turn back; that of a member that is out lasts until its process is gone.

        Args:
            member: who gives it back.
            lease: its number.
            now_s: the present time.
            again: what the member wants its next turn for; it may be next itself, when others have had more. None: it
                has nothing to do.
            used_s: how long it used the device in this turn, which it may have kept while it had nothing to do; never
                taken for more than the turn lasted.

        Raises:
            TurnError: it does not hold that turn.
        """
        if member.is_out:
            return []
        if member.lease is None or member.lease != lease:
            raise TurnError("it gave back a turn that it did not have")
        self._free(member, now_s, used_s)
        if again is not None:
            self._wait(member, again, now_s)
        return self._next(now_s)

    def stay(self, member: Member, lease: int, allowance_s: float) -> None:
        """Note that the holder is in a step that may take so much longer; of another turn it says nothing."""
        if member.lease == lease and member.recalled_s is not None and not member.is_out:
            allowed_s = min(max(allowance_s, 0.0), MAX_ALLOWANCE_S)
            member.due_s = max(member.due_s, member.recalled_s + self.limits.hold_s + allowed_s)

    def exclude(self, member: Member, now_s: float) -> list[Order]:
        """Give a member no more turns; one that it holds is free when it has left, which it must within the limit."""
        member.is_out = True
        member.waiting_since_s = None
        if member.lease is not None and member.recalled_s is None:
            self._begin_wait(member, now_s)
        return []

    def leave(self, member: Member, now_s: float) -> list[Order]:
        """Forget a member whose process is gone; its turn is free."""
        if self._members.pop(member, self) is self:
            return []
        member.is_out, member.waiting_since_s = True, None
        if self.holder is member:
            self._free(member, now_s)
        return self._next(now_s)

    def look(self, now_s: float) -> list[Order]:
        """Return what time alone has made due: a reminder, or the end of a holder that is stuck, once."""
        holder = self.holder
        if holder is None or holder.lease is None:
            return []
        if now_s >= holder.due_s and not holder.is_told:
            holder.is_out = holder.is_told = True
            return [Stuck(holder)]
        if now_s >= holder.remind_s and not holder.is_out:
            holder.remind_s = now_s + REMIND_S
            return [Recall(holder, holder.lease)]
        return []

    def next_look_s(self) -> float:
        """Return when `look` may find something; infinity where it cannot."""
        holder = self.holder
        if holder is None or holder.is_told:
            return math.inf
        return holder.due_s if holder.is_out else min(holder.due_s, holder.remind_s)

    def forgive(self, late_s: float) -> None:
        """Hold time during which the gateway itself stood still against nobody."""
        if self.holder is not None:
            self.holder.due_s += late_s

    def _next(self, now_s: float) -> list[Order]:
        """Give the device to who is next, or ask for it."""
        waiting = self._advance(now_s)
        if not waiting:
            return []
        holder = self.holder
        if holder is None:
            return [self._grant(min(waiting, key=_rank), is_wanted=len(waiting) > 1, now_s=now_s)]
        if holder.recalled_s is not None or holder.lease is None:
            return []
        self._begin_wait(holder, now_s)
        return [Recall(holder, holder.lease)]

    def _grant(self, member: Member, *, is_wanted: bool, now_s: float) -> Grant:
        self._num_leases += 1
        self.holder = member
        member.lease, member.granted_s, member.waiting_since_s = self._num_leases, now_s, None
        if is_wanted:
            self._begin_wait(member, now_s)
        others = [other for other in self._members if other is not member and not other.is_out]
        has_company = is_wanted or any(other.held_until_s > now_s - COMPANY_S for other in others)
        return Grant(member, self._num_leases, is_wanted, has_company, bool(others))

    def _wait(self, member: Member, claim: Claim, now_s: float) -> None:
        member.used_s = max(member.used_s, self._clock_s - CREDIT_S)
        member.claim, member.waiting_since_s = claim, now_s

    def _begin_wait(self, holder: Member, now_s: float) -> None:
        """Note that from now on others wait for what the holder has."""
        holder.recalled_s = now_s
        holder.due_s = now_s + self.limits.hold_s
        holder.remind_s = now_s + min(REMIND_S, self.limits.hold_s / 2)

    def _free(self, member: Member, now_s: float, used_s: float = math.inf) -> None:
        self._advance(now_s)
        member.used_s += max(0.0, min(used_s, now_s - member.granted_s))
        member.used_s = min(member.used_s, self._clock_s + DEBT_S)
        member.lease = member.recalled_s = None
        member.due_s = member.remind_s = math.inf
        member.held_until_s = now_s
        self.holder = None

    def _advance(self, now_s: float) -> list[Member]:
        """Let the common clock follow those who want the device; return those who wait."""
        waiting = [member for member in self._members if member.waiting_since_s is not None]
        used_s = [member.used_s for member in waiting]
        if self.holder is not None:
            used_s.append(self.holder.used_s + max(0.0, now_s - self.holder.granted_s))
        if used_s:
            self._clock_s = max(self._clock_s, min(used_s))
        return waiting


def _rank(member: Member) -> tuple[float, float]:
    since_s = 0.0 if member.waiting_since_s is None else member.waiting_since_s
    return member.used_s - HEAD_START_S[member.claim], since_s
