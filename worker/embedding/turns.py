"""Whose tokens are computed in the next step: plain Python.

A step has a budget of tokens, which the requests of the highest priority share, whoever has had the least going first.
An input that does not fit is cut, and goes on in the next step; then it holds a slot and the room of all its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

# Inputs that are under way at once.
NUM_SLOTS = 128
# Steps whose tokens short inputs may hold together: those that are computed, and those that are cut.
SHORT_STEPS = 4
# A smaller piece of an input is not worth a cut, unless it is all that is left or all that a step holds.
MIN_PIECE_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens of one input that the next step computes.

    Attributes:
        key: of the request.
        index: of the input within it.
        slot: that the input holds.
        start: number of the first token.
        count: how many.
        is_last: whether the input ends with them.
    """

    key: str
    index: int
    slot: int
    start: int
    count: int
    is_last: bool


@dataclass(frozen=True, slots=True)
class StepBounds:
    """What one step may hold.

    Attributes:
        num_tokens: of all pieces together.
        num_inputs: pieces.
        num_requests: that they belong to.
    """

    num_tokens: int
    num_inputs: int
    num_requests: int


class Room:
    """Slots, and room for the tokens of the inputs that hold them.

    Inputs that a step cannot hold whole have room of their own: short ones never wait for the end of a long one, nor
    does a long one for a moment without short ones.

    Args:
        num_slots: inputs that may be under way at once.
        short_tokens: of inputs of at most `step_tokens` together.
        long_tokens: of longer ones together.
        step_tokens: the most that a step computes.
    """

    def __init__(self, num_slots: int, short_tokens: int, long_tokens: int, step_tokens: int) -> None:
        self._free = list(range(num_slots - 1, -1, -1))
        self._left = {False: short_tokens, True: long_tokens}
        self._step_tokens = step_tokens

    def is_long(self, num_tokens: int) -> bool:
        """Tell whether an input of so many tokens is a long one."""
        return num_tokens > self._step_tokens

    def take(self, num_tokens: int) -> int | None:
        """Return a slot with room for an input; None where there is none."""
        is_long = self.is_long(num_tokens)
        if not self._free or num_tokens > self._left[is_long]:
            return None
        self._left[is_long] -= num_tokens
        return self._free.pop()

    def give_back(self, slot: int, num_tokens: int) -> None:
        """Take back what `take` gave for an input of so many tokens."""
        self._free.append(slot)
        self._left[self.is_long(num_tokens)] += num_tokens


@dataclass(slots=True, eq=False)
class Turn:
    """One request's place.

    Attributes:
        key: of the request.
        priority: -128 (last) to 127 (first).
        lengths: tokens of each input.
        served: tokens that it has had; a newcomer begins with the least that another has, so that neither waits long.
        index: the input that is next.
        start: how many tokens of it are computed.
        slot: that it holds; None: it has not begun.
        held: tokens of each input under way, by its slot: this one, and those that are being computed to their end.
    """

    key: str
    priority: int
    lengths: Sequence[int] = field(repr=False)
    served: int = 0
    index: int = 0
    start: int = 0
    slot: int | None = None
    held: dict[int, int] = field(default_factory=dict[int, int])

    @property
    def is_waiting(self) -> bool:
        """Whether something of it is left to compute."""
        return self.index < len(self.lengths)


class Turns:
    """The requests that are not all computed, oldest first.

    Args:
        room: where their inputs find it.
    """

    def __init__(self, room: Room) -> None:
        self._room = room
        self._turns: dict[str, Turn] = {}

    def add(self, key: str, priority: int, lengths: Sequence[int]) -> None:
        """Queue a request with inputs of these lengths."""
        served = min((turn.served for turn in self._turns.values()), default=0)
        self._turns[key] = Turn(key, priority, lengths, served)

    def release(self, piece: Piece) -> None:
        """Give back what an input held whose last piece is computed."""
        turn = self._turns[piece.key]
        self._room.give_back(piece.slot, turn.held.pop(piece.slot))

    def remove(self, key: str) -> list[int]:
        """Forget a request, and give back what its inputs hold; nothing where it is forgotten already.

        Returns:
            The slots that they held.
        """
        turn = self._turns.pop(key, None)
        held = {} if turn is None else turn.held
        for slot, num_tokens in held.items():
            self._room.give_back(slot, num_tokens)
        return list(held)

    def __len__(self) -> int:
        """Return how many requests are there."""
        return len(self._turns)

    def plan(self, step: StepBounds) -> list[Piece]:
        """Share a step out, and note what its requests have had.

        Args:
            step: what it may hold.

        Returns:
            Pieces, at most one of each input. Whoever computes one that is an input's last calls `release`.
        """
        return _Step(self._room, list(self._turns.values()), step).pieces()


class _Step:
    """One step while it is shared out."""

    def __init__(self, room: Room, turns: list[Turn], bounds: StepBounds) -> None:
        self._room = room
        self._bounds = bounds
        self._open = [turn for turn in turns if turn.is_waiting]
        self._tokens_left = bounds.num_tokens
        # Once one has found no room for a long input, none that comes later may take it.
        self._is_long_waited_for = False
        self._keys: set[str] = set()
        self._pieces: dict[tuple[str, int], Piece] = {}

    def pieces(self) -> list[Piece]:
        """Let the requests take pieces in turn, until nothing fits any more."""
        while self._open and self._tokens_left:
            turn = min(self._open, key=lambda each: (-each.priority, each.served))
            count = self._count(turn) if self._may_join(turn) else 0
            slot = self._slot(turn) if count else None
            if slot is None:
                self._open.remove(turn)
            else:
                self._take(turn, slot, count)
        return list(self._pieces.values())

    def _may_join(self, turn: Turn) -> bool:
        if turn.key not in self._keys and len(self._keys) >= self._bounds.num_requests:
            return False
        return (turn.key, turn.index) in self._pieces or len(self._pieces) < self._bounds.num_inputs

    def _count(self, turn: Turn) -> int:
        """Return how many tokens of a request's next input fit; 0: too few to be worth it."""
        left = turn.lengths[turn.index] - turn.start
        peers = sum(each.priority == turn.priority for each in self._open)
        count = min(left, self._tokens_left, max(MIN_PIECE_TOKENS, self._tokens_left // peers))
        return count if count == left or count >= min(MIN_PIECE_TOKENS, self._bounds.num_tokens) else 0

    def _slot(self, turn: Turn) -> int | None:
        """Return the slot of a request's next input; None: there is no room for it."""
        if turn.slot is None:
            num_tokens = turn.lengths[turn.index]
            is_long = self._room.is_long(num_tokens)
            if not is_long or not self._is_long_waited_for:
                turn.slot = self._room.take(num_tokens)
            if turn.slot is not None:
                turn.held[turn.slot] = num_tokens
            self._is_long_waited_for |= is_long and turn.slot is None
        return turn.slot

    def _take(self, turn: Turn, slot: int, count: int) -> None:
        place = turn.key, turn.index
        before = self._pieces.get(place, Piece(*place, slot, turn.start, 0, is_last=False))
        is_last = turn.start + count == turn.lengths[turn.index]
        self._pieces[place] = replace(before, count=before.count + count, is_last=is_last)
        self._keys.add(turn.key)
        self._tokens_left -= count
        turn.served += count
        if not is_last:
            turn.start += count
            return
        turn.index, turn.start, turn.slot = turn.index + 1, 0, None
        if not turn.is_waiting:
            self._open.remove(turn)
