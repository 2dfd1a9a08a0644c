"""Steps of many rows: forwards and draws, built and started without waiting for the device.

The order of a decode step: `build` the forward of what was read of each row, `start` it, `draw` the next token of each
row. That is its last token, and more where a constraint left no choice about some.
Where the device starts at once, the forward is built on tokens that are still on it, and the host reads them while it
computes; rows that turn out to have ended are left out of the draw. Elsewhere the host reads first.

On the reference path every row is a step of its own, in the shapes of mlx-lm.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass

import mlx.core as mx

from models.layers.cache import Cache, Step
from models.registry import LoadedModel
from models.step import NumericPath, RowPlan, StepPlan
from worker.row import Row, RowOrderError, Underway
from worker.sampling import Draw, Drawer, DrawPlan


@dataclass(frozen=True, slots=True)
class Forward:
    """A forward that was built: float32 or compute dtype [M, V], one line for each token of its rows."""

    rows: tuple[Row, ...]
    logits: mx.array


class Batch:
    """Computes the rows of one model; belongs to the engine's thread.

    Args:
        loaded: the model.
        cache: where the rows hold their slots.
    """

    def __init__(self, loaded: LoadedModel, cache: Cache) -> None:
        self._model = loaded.model
        self._adapters = loaded.adapters
        self._cache = cache
        self._is_reference = loaded.path is NumericPath.REFERENCE
        self._drawer = Drawer(loaded.path, is_native=loaded.arithmetic.name == "native")
        self._forwards: list[Forward] = []

    def prefill(self, rows: Items[Row], plans: Items[RowPlan]) -> list[Row]:
        """Compute chunks of prompts and return the rows whose prompts are complete: `draw` comes next for them.

        Inner chunks are waited for, so that no more than one step of them is ever under way.
        """
        step = self._begin(plans)
        hidden = self._model.hidden(step)
        complete = tuple(row for row, plan in zip(rows, plans, strict=True) if plan.logits_at)
        if complete:
            logits = self._model.head(step.select(hidden))[0]  # [1, M, E] -> [M, V]
            mx.async_eval(logits)  # pyright: ignore[reportUnknownMemberType]
            self._forwards.append(Forward(complete, logits))
        else:
            mx.eval(step.state())  # pyright: ignore[reportUnknownMemberType]
        for row, plan in zip(rows, plans, strict=True):
            self._cache.commit(plan.slot, plan.num_tokens)
            row.sequence.prefilled += plan.num_tokens
        return list(complete)

    def build(self, rows: Items[Row], *, is_ahead: bool) -> None:
        """Build the forward of each row's last tokens, and of guesses behind them; nothing is computed yet.

        Args:
            rows: whose token was drawn.
            is_ahead: whether the tokens have not been read: then they come from the device, and nothing is guessed.
        """
        groups = [(row,) for row in rows] if self._is_reference else [tuple(rows)]
        self._forwards.extend(self._forward(group, is_ahead=is_ahead) for group in groups if group)

    def start(self) -> None:
        """Start what was built. MLX's CPU backend returns when most of it is computed, others at once."""
        mx.async_eval([forward.logits for forward in self._forwards])  # pyright: ignore[reportUnknownMemberType]

    def draw(self, rows: Items[Row]) -> None:
        """Start drawing the next tokens of rows whose forward was built, but for those whose tokens are forced.

        Args:
            rows: those that go on, each with its restriction if it has a constraint; the others of a forward are left
                out.
        """
        left = set(rows)
        forwards, self._forwards = self._forwards, []
        draws = [draw for forward in forwards if (draw := self._draw(forward, left)) is not None]
        if left:
            raise RowOrderError("no logits were built")
        mx.async_eval([draw.arrays for draw in draws])  # pyright: ignore[reportUnknownMemberType]

    def drop(self) -> None:
        """Forget what was built and not drawn, after a failure."""
        self._forwards = []

    def _forward(self, rows: tuple[Row, ...], *, is_ahead: bool) -> Forward:
        plans = [self._plan(row, is_ahead=is_ahead) for row in rows]
        step = self._begin(plans, _tokens_of(rows) if is_ahead else None)
        hidden = self._model.hidden(step)
        return Forward(rows, self._model.head(step.select(hidden))[0])

    def _begin(self, plans: Items[RowPlan], device_tokens: mx.array | None = None) -> Step:
        step = self._cache.begin(StepPlan(tuple(plans)), device_tokens)
        if self._adapters is not None:
            self._adapters.serve(step)
        return step

    def _plan(self, row: Row, *, is_ahead: bool) -> RowPlan:
        start = self._cache.length(row.slot)
        if is_ahead:
            row.num_computing = 1
            return RowPlan(row.slot, None, start, (0,), row.sequence.request.adapters)
        pending = row.pending()
        row.num_computing = len(pending)
        tokens = pending + row.guess()
        logits_at = tuple(range(len(pending) - 1, len(tokens)))
        return RowPlan(row.slot, tokens, start, logits_at, row.sequence.request.adapters)

    def _draw(self, forward: Forward, left: set[Row]) -> Draw | None:
        plans: list[DrawPlan] = []
        places: list[int] = []
        drawn: list[tuple[Row, int]] = []
        first = 0
        for row in forward.rows:
            count = 1 + len(row.drafts)
            if row in left:
                left.remove(row)
                self._keep(row)
                if not row.is_forced:
                    mask = row.take_mask()
                    drawn.append((row, len(plans)))
                    plans.extend(DrawPlan(row.sampler, ahead, mask) for ahead in range(count))
                    places.extend(range(first, first + count))
            first += count
        if not plans:
            return None
        logits = forward.logits if len(places) == first else forward.logits[mx.array(places, dtype=mx.int32)]
        draw = self._drawer.draw(logits, plans)
        underway = Underway(draw)
        for row, place in drawn:
            row.await_draw(underway, place)
        return draw

    def _keep(self, row: Row) -> None:
        """Commit what is sure of a row's step; where it has guesses, that is known once its tokens are read."""
        if row.num_computing and not row.drafts:
            self._cache.commit(row.slot, row.num_computing)
        row.num_computing = 0


def _tokens_of(rows: Items[Row]) -> mx.array:
    """Return the tokens that were drawn last for rows, wherever they were drawn; uint32 [R]."""
    draws = list({id(row.draw): row.draw for row in rows}.values())
    firsts: dict[int, int] = {}
    total = 0
    for draw in draws:
        firsts[id(draw)] = total
        total += draw.tokens.size
    places = [firsts[id(row.draw)] + row.place for row in rows]
    tokens = draws[0].tokens if len(draws) == 1 else mx.concatenate([draw.tokens for draw in draws])
    return tokens if places == list(range(total)) else tokens[mx.array(places, dtype=mx.int32)]
