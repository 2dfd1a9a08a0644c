"""How prompts are cut, and which of them move in a tick; plain Python.

The prompts that hold a slot take turns, and each tick shares out one budget of tokens:

* Whose turn it is can count on half of the budget, or on what it needs where that is less.
* The rest of the budget finishes short prompts out of turn, the shortest first, as long as they fit in wholly.
* What is left goes to whose turn it is, then on in the order of turns.
* Whose turn it was is last in that order from then on, and a new prompt joins at the end.

So a prompt among n has its turn within n ticks and moves by half a budget then, which no stream of short ones can take
from it; and a short one need not wait for its turn: it is computed at once where it fits in half of the budget together
with all that are shorter. Dividing the budget evenly would be as fair, but many equal prompts would all end late; in
turn they end one after the other.
"""

from dataclasses import dataclass

from models.step import RowPlan
from worker.sequence import Sequence, State

REFERENCE_CHUNK_TOKENS = 2048


class NoSlotError(RuntimeError):
    """Raised when a prompt is to be computed that has no slot: a broken invariant."""


@dataclass(frozen=True, slots=True)
class Chunking:
    """How prompts are cut.

    Attributes:
        chunk_tokens: at most so many prompt tokens a tick, of all prompts together.
        max_rows: at most so many prompts a tick; None: as many as fit. With 1 the budget is never divided.
        is_last_token_apart: the last token of a prompt is a step of its own, as on the reference path.
    """

    chunk_tokens: int
    max_rows: int | None = None
    is_last_token_apart: bool = False

    def next_tokens(self, num_tokens: int, start: int) -> int:
        """Return how many tokens of a prompt of `num_tokens` come next at most, with `start` of them done."""
        end = num_tokens - 1 if self.is_last_token_apart and start < num_tokens - 1 else num_tokens
        return min(self.chunk_tokens, end - start)


REFERENCE_CHUNKING = Chunking(REFERENCE_CHUNK_TOKENS, max_rows=1, is_last_token_apart=True)


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next part of a prompt."""

    sequence: Sequence
    row: RowPlan


class PromptTurns:
    """Shares the budget of each tick out among the prompts that hold a slot.

    Args:
        chunking: how they are cut.
    """

    def __init__(self, chunking: Chunking) -> None:
        self._chunking = chunking
        self._order: list[Sequence] = []

    def join(self, sequence: Sequence) -> None:
        """Let a sequence take turns until its prompt is computed or it ends."""
        self._order.append(sequence)

    def next_chunks(self, limit: int | None = None) -> tuple[Chunk, ...]:
        """Return the chunks of the next tick; whose turn it was is last from then on.

        Args:
            limit: of the budget of this tick, at least 1; None: the whole.
        """
        self._order = [sequence for sequence in self._order if sequence.state is State.PREFILLING]
        if not self._order:
            return ()
        budget = self._chunking.chunk_tokens
        shares = self._shares(budget if limit is None else min(limit, budget))
        self._order = self._order[1:] + self._order[:1]
        return tuple(_chunk(sequence, num_tokens) for sequence, num_tokens in shares.items())

    def _shares(self, budget: int) -> dict[Sequence, int]:
        """Return who gets how many tokens."""
        max_rows = self._chunking.max_rows or len(self._order)
        shares = self._short(budget, max_rows - 1)
        left = budget - sum(shares.values())
        for sequence in self._order:
            if left == 0 or len(shares) == max_rows:
                break
            if sequence not in shares:
                shares[sequence] = min(self._wanted(sequence), left)
                left -= shares[sequence]
        return shares

    def _short(self, budget: int, max_rows: int) -> dict[Sequence, int]:
        """Return those that are finished out of turn, beside what whose turn it is counts on."""
        shares: dict[Sequence, int] = {}
        left = budget - min(self._wanted(self._order[0]), budget - budget // 2)
        for sequence in sorted(self._order[1:], key=_rest)[:max_rows]:
            if _rest(sequence) > left:
                break
            shares[sequence] = self._wanted(sequence)
            left -= shares[sequence]
        return shares

    def _wanted(self, sequence: Sequence) -> int:
        return self._chunking.next_tokens(len(sequence.request.prompt_ids), sequence.prefilled)


def _rest(sequence: Sequence) -> int:
    return len(sequence.request.prompt_ids) - sequence.prefilled


def _chunk(sequence: Sequence, num_tokens: int) -> Chunk:
    if sequence.slot is None:
        raise NoSlotError(f"request {sequence.request_id} runs without a slot")
    start, end = sequence.prefilled, sequence.prefilled + num_tokens
    prompt = sequence.request.prompt_ids
    logits_at = (num_tokens - 1,) if end == len(prompt) else ()
    return Chunk(sequence, RowPlan(sequence.slot, prompt[start:end], start, logits_at, sequence.request.adapters))
