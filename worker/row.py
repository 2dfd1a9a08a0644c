"""One running sequence as the device computes it: its sampler, its guesses and the draw that is under way."""

from collections.abc import Callable
from functools import cached_property

from models.layers.cache import Cache
from native import kernels
from worker.drafts import Drafter
from worker.masks import Mask
from worker.restriction import Restriction
from worker.sampling import Draw, Sampler
from worker.sequence import Advance, Drawn, Sequence


class RowOrderError(RuntimeError):
    """Raised when a verb of a row comes out of order."""


class LogitsNotFiniteError(RuntimeError):
    """Raised when no token can be drawn because logits are not numbers, or none is allowed."""


class KernelFailedError(RuntimeError):
    """Raised when a kernel could not go on: what it should have stored may be missing to any row that has begun."""


class Underway:
    """A draw that several rows wait for.

    Attributes:
        tokens: uint32 [M], on the device.
    """

    def __init__(self, draw: Draw) -> None:
        self.tokens = draw.tokens
        self._draw = draw
        self._drawn: list[Drawn | None] | None = None

    def read(self) -> list[Drawn | None]:
        """Wait for the tokens; None for those whose logits were not numbers.

        Raises:
            KernelFailedError: in this step or in one before.
            RuntimeError: computing them failed; to whoever asks again they are none.
        """
        if self._drawn is None:
            # MLX says once what went wrong, and from then on gives numbers that mean nothing.
            self._drawn = list[Drawn | None]([None]) * self.tokens.size
            drawn = self._draw.read()
            # All that was started before is computed too, so nobody is told a token behind what is missing.
            if (problem := kernels.take_failure()) is not None:
                raise KernelFailedError(problem)
            self._drawn = drawn
        return self._drawn


class Row:
    """A sequence's part in the steps of a model.

    Args:
        sequence: holds a slot of `cache`.
        cache: where its keys and values are.
        make_sampler: makes what draws its tokens.

    Attributes:
        num_published: blocks of its tokens that other requests may share already.
        num_reached: blocks of its prompt that were found so far, while more are read from the disk.
        drafts: guesses that the step under way computes behind the last token.
        restriction: what its constraint says of the tokens to come; None: it was not asked since the last draw.
        num_computing: tokens that its step under way adds for good.
        num_read: tokens that the sequence took when `advance` read last; those past its end are none of it.
        was_drawn: whether these were drawn, and not forced.
        last_read: when its last tokens were read, in seconds of the engine's clock; None: none yet.
    """

    def __init__(self, sequence: Sequence, cache: Cache, make_sampler: Callable[[], Sampler]) -> None:
        self.sequence = sequence
        self.num_published = 0
        self.num_reached = 0
        self.drafts: tuple[int, ...] = ()
        self.restriction: Restriction | None = None
        self.num_computing = 0
        self.num_read = 0
        self.was_drawn = False
        self.last_read: float | None = None
        self._cache = cache
        self._make_sampler = make_sampler
        self._draw: Underway | None = None
        self._place = 0

    @cached_property
    def sampler(self) -> Sampler:
        """Draws its tokens; made when the first is drawn, since many requests wait and some never run."""
        return self._make_sampler()

    @cached_property
    def _drafter(self) -> Drafter | None:
        request = self.sequence.request
        # With penalties or a constraint, what it may say depends on what it just said.
        is_free = self.sampler.is_plain and self.sequence.constraint is None and self._cache.can_reject
        if request.max_draft_tokens == 0 or not is_free:
            return None
        return Drafter(request.prompt_ids, request.max_draft_tokens)

    @property
    def is_drafting(self) -> bool:
        """Whether its next steps may have more than one token."""
        return self._drafter is not None

    @property
    def is_forced(self) -> bool:
        """Whether the tokens that come next are known, and no draw is under way."""
        return self.restriction is not None and bool(self.restriction.forced)

    @property
    def slot(self) -> int:
        """The slot that it holds."""
        if self.sequence.slot is None:
            raise RowOrderError("the row holds no slot")
        return self.sequence.slot

    @property
    def draw(self) -> Underway:
        """The draw of its next token."""
        if self._draw is None:
            raise RowOrderError("no token was sampled")
        return self._draw

    @property
    def place(self) -> int:
        """Which of the draw's tokens is its first."""
        return self._place

    def await_draw(self, draw: Underway, place: int) -> None:
        """Note the draw that its next tokens come from, its own from `place` on."""
        self._draw, self._place = draw, place

    def guess(self) -> tuple[int, ...]:
        """Return guesses to compute behind the last token that was read."""
        if self._drafter is not None:
            limit = self.sequence.token_limit - len(self.sequence.output_ids) - 1
            self.drafts = self._drafter.draft(limit)
        return self.drafts

    def pending(self) -> tuple[int, ...]:
        """Return the tokens that were read, and whose keys and values are not computed yet."""
        start = self._cache.length(self.slot) - len(self.sequence.request.prompt_ids)
        return tuple(self.sequence.output_ids[start:])

    def advance(self) -> list[Advance]:
        """Read the tokens that come next, drawn or forced, and let the sequence take them, up to its end.

        Raises:
            KernelFailedError: see `Underway.read`.
            LogitsNotFiniteError: logits were not numbers.
            TokenNotAllowedError: the constraint does not take what it allowed.
            WorkerError: the constraint has failed.
        """
        num_before = len(self.sequence.output_ids)
        advances = self._advance_forced() or self._advance_drawn()
        self.num_read = len(self.sequence.output_ids) - num_before
        return advances

    def take_mask(self) -> Mask | None:
        """Return which tokens may be drawn, once."""
        restriction, self.restriction = self.restriction, None
        return None if restriction is None else restriction.mask

    def take(self) -> list[Drawn]:
        """Wait for the draw and return the tokens that it gave: one, and one more for each guess that was right.

        Raises:
            KernelFailedError: see `Underway.read`.
            LogitsNotFiniteError: logits were not numbers.
        """
        found = self.draw.read()[self._place : self._place + 1 + len(self.drafts)]
        accepted: list[Drawn] = []
        for drawn, guess in zip(found, (*self.drafts, None), strict=True):
            if drawn is None:
                raise LogitsNotFiniteError(f"request {self.sequence.request_id}, after {self.sequence.position} tokens")
            accepted.append(drawn)
            if drawn.token_id != guess:
                break
        self._settle(len(accepted))
        for drawn in accepted:
            self.sampler.add(drawn.token_id)
            if self._drafter is not None:
                self._drafter.add(drawn.token_id)
        return accepted

    def _advance_forced(self) -> list[Advance]:
        """Let the sequence take what is forced; nothing is returned where nothing is."""
        if self.restriction is None or not self.restriction.forced:
            return []
        forced = self.restriction.forced
        self.restriction = Restriction(mask=self.restriction.mask)
        self.was_drawn = False
        for token_id in forced:
            self.sampler.add(token_id)
        return [self.sequence.force(forced)]

    def _advance_drawn(self) -> list[Advance]:
        advances: list[Advance] = []
        self.was_drawn = True
        for drawn in self.take():
            advances.append(self.sequence.advance(drawn))
            if advances[-1].finished is not None:
                break
        return advances

    def _settle(self, num_tokens: int) -> None:
        """Keep what the step computed of the guesses that were right."""
        self._draw = None
        if not self.drafts:
            return
        self._cache.commit(self.slot, num_tokens)
        num_drafted, self.drafts = len(self.drafts), ()
        self.sequence.num_drafted += num_drafted
        self.sequence.num_accepted += num_tokens - 1
        if self._drafter is not None:
            self._drafter.judge(num_drafted, num_tokens - 1)
