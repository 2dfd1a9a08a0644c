"""Where workers take turns on a device: their lines, and the timer that looks after who holds it.

What the rules are stands in `gateway.turns`; here messages become calls of it, and its orders messages. Everything runs
on the event loop and nothing waits. While the loop stands still no turn changes hands: workers that wait go on waiting,
for two at once on one device is what turns are there to prevent.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from structlog.typing import FilteringBoundLogger

from gateway.turn_line import HAS_COMPANY, HAS_OTHERS, IS_WANTED, Kind, LineClosedError, LineError, Message, TurnLine
from gateway.turns import Claim, Grant, Member, Order, Recall, Stuck, TurnError, TurnLimits, Turns

# A timer that comes so much late was held up by the gateway itself.
LATE_S = 0.5
KEPT_EVENTS = 4096
# Of one worker in a second: many times what one says that gives its turn back after every millisecond.
MAX_MESSAGES = 20_000
STUCK = "it did not give its turn on the device back"


@dataclass(frozen=True, slots=True)
class TurnEvent:
    """What happened to a turn: "granted", "recalled", "released", "stuck" or "gone", in monotonic seconds."""

    time_s: float
    what: str
    name: str
    lease: int


@dataclass(slots=True, eq=False)
class Seat:
    """A worker's place at the table.

    Attributes:
        member: what the rules know of it.
        line: to the worker.
        on_fault: is told, once, why the worker must be ended; "stuck" ones count as stalled.
        is_faulty: it was told.
        num_said: messages that the worker sent since `counted_s`, a second ago at most.
        counted_s: monotonic time in seconds.
    """

    table: "TurnTable"
    member: Member
    line: TurnLine = field(init=False)
    on_fault: Callable[[str], None]
    is_faulty: bool = False
    num_said: int = 0
    counted_s: float = -math.inf

    @property
    def child_fd(self) -> int:
        """The worker's end of the line."""
        return self.line.child_fd

    def begin(self) -> None:
        """Close the worker's end here: the worker has it."""
        self.line.forget_child()

    def leave(self) -> None:
        """Free what the worker held, because its process is gone, or given up for good; a second call does nothing."""
        self.table.remove(self)


class TurnTable:
    """All workers that share one device.

    Args:
        limits: of turns.
        log: takes what is wrong.
        now: monotonic time in seconds.
        rules: whose turn it is; None: fresh ones.

    Attributes:
        history: what happened lately, oldest first.
        num_stuck: how many holders had to be ended.
    """

    def __init__(
        self,
        limits: TurnLimits,
        log: FilteringBoundLogger,
        now: Callable[[], float] = time.monotonic,
        rules: Turns | None = None,
    ) -> None:
        self.history: deque[TurnEvent] = deque(maxlen=KEPT_EVENTS)
        self.num_stuck = 0
        self._limits = limits
        self._log = log
        self._now = now
        self._turns = rules or Turns(limits)
        self._seats: dict[Member, Seat] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = math.inf

    @property
    def num_seats(self) -> int:
        """How many workers have a place."""
        return len(self._seats)

    @property
    def num_waiting(self) -> int:
        """How many wait for their turn."""
        return self._turns.num_waiting

    @property
    def holder(self) -> str:
        """Whose turn it is; empty where it is nobody's."""
        return "" if self._turns.holder is None else self._turns.holder.name

    def seat(self, name: str, on_fault: Callable[[str], None]) -> Seat:
        """Give a worker that is about to be started a place.

        Args:
            name: for people.
            on_fault: is told why the worker must be ended; its turn is free once `Seat.leave` says that it is gone.

        Raises:
            OSError: the system has no sockets left.
        """
        seat = Seat(self, self._turns.join(name), on_fault)
        try:
            seat.line = TurnLine(lambda: self._read(seat))
        except OSError:
            self._turns.leave(seat.member, self._now())
            raise
        self._seats[seat.member] = seat
        return seat

    def remove(self, seat: Seat) -> None:
        """Let a worker go that is gone; see `Seat.leave`."""
        if self._seats.pop(seat.member, None) is None:
            return
        seat.line.close()
        if seat.member.lease is not None:
            self._note("gone", seat.member, seat.member.lease)
        self._carry_out(self._turns.leave(seat.member, self._now()))

    def _read(self, seat: Seat) -> None:
        """Take what a worker said."""
        try:
            messages = seat.line.read()
            self._count(seat, len(messages))
            for message in messages:
                self._carry_out(self._take(seat.member, message))
        except LineClosedError:
            self._lose(seat, "")
        except (LineError, TurnError) as error:
            self._lose(seat, str(error))
        self._set_timer()

    def _count(self, seat: Seat, number: int) -> None:
        """Refuse a worker that says so much that the gateway would have little time for others."""
        now_s = self._now()
        if now_s - seat.counted_s >= 1.0:
            seat.num_said, seat.counted_s = 0, now_s
        seat.num_said += number
        if seat.num_said > MAX_MESSAGES:
            raise LineError("it says too much on its turn line")

    def _take(self, member: Member, message: Message) -> list[Order]:
        now_s = self._now()
        if message.kind is Kind.WANT:
            return self._turns.want(member, _claim(message.detail), now_s)
        if message.kind is Kind.LEAVE:
            return self._turns.leave(member, now_s)
        if message.kind is Kind.STAY:
            self._turns.stay(member, message.lease, message.micros / 1e6)
            return []
        again = _claim(message.detail - 1) if message.detail else None
        orders = self._turns.release(member, message.lease, now_s, again, message.micros / 1e6)
        self._note("released", member, message.lease)
        return orders

    def _lose(self, seat: Seat, problem: str) -> None:
        """Give a worker no more turns; with a problem it is ended, without one it most likely ends by itself."""
        seat.line.stop_reading()
        self._turns.exclude(seat.member, self._now())
        if problem:
            self._fault(seat, problem)

    def _carry_out(self, orders: list[Order]) -> None:
        for order in orders:
            seat = self._seats.get(order.member)
            if seat is None:
                continue
            try:
                self._tell(seat, order)
            except LineClosedError:
                self._lose(seat, "")
            except LineError as error:
                self._lose(seat, str(error))
        self._set_timer()

    def _tell(self, seat: Seat, order: Order) -> None:
        match order:
            case Grant(member, lease, is_wanted, has_company, has_others):
                self._note("granted", member, lease)
                detail = IS_WANTED * is_wanted | HAS_COMPANY * has_company | HAS_OTHERS * has_others
                seat.line.send(Message(Kind.GRANT, lease, detail, round(self._limits.burst_s * 1e6)))
            case Recall(member, lease):
                self._note("recalled", member, lease)
                seat.line.send(Message(Kind.RECALL, lease))
            case Stuck(member):
                self.num_stuck += 1
                self._note("stuck", member, member.lease or 0)
                self._fault(seat, STUCK)

    def _fault(self, seat: Seat, problem: str) -> None:
        if not seat.is_faulty:
            seat.is_faulty = True
            self._log.warning("worker loses its turn", model=seat.member.name, problem=problem)
            seat.on_fault(problem)

    def _note(self, what: str, member: Member, lease: int) -> None:
        self.history.append(TurnEvent(self._now(), what, member.name, lease))

    def _set_timer(self) -> None:
        due_s = self._turns.next_look_s()
        if due_s == self._timer_s:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_s = due_s
        if due_s < math.inf:
            delay_s = max(0.0, due_s - self._now())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._look)

    def _look(self) -> None:
        """See what time has made due; what workers said meanwhile comes first."""
        late_s, self._timer, self._timer_s = self._now() - self._timer_s, None, math.inf
        if late_s > LATE_S:
            self._turns.forgive(late_s)
        for seat in list(self._seats.values()):
            if not seat.member.is_out:
                self._read(seat)
        self._carry_out(self._turns.look(self._now()))


def _claim(number: int) -> Claim:
    try:
        return Claim(number)
    except ValueError:
        raise TurnError("it made a claim that there is not") from None
