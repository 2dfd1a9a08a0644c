"""One running sequence on the device: the verbs of a decode step, and its prompt chunks.

A step is built and started on the token that is still on the device; the token is read; the host works while the device
computes; then the next token is sampled with what the host learnt.
"""

from collections.abc import Sequence as Items

import mlx.core as mx

from models.layers.cache import KVCache
from models.registry import TextModel
from models.step import NumericPath, RowPlan, StepPlan
from worker.sampling import Draw, Sampler
from worker.sequence import Sequence, State


class RowOrderError(RuntimeError):
    """Raised when a verb of a row comes out of order."""


class LogitsNotFiniteError(RuntimeError):
    """Raised when no token can be drawn because logits are not numbers, or none is allowed."""


class Row:
    """A sequence's part in the steps of a model.

    Args:
        sequence: holds a slot of `cache`.
        model: what computes it.
        cache: where its keys and values are.
        path: how prompts and greedy tokens are computed.
    """

    def __init__(self, sequence: Sequence, model: TextModel, cache: KVCache, path: NumericPath) -> None:
        self.sequence = sequence
        self._model = model
        self._cache = cache
        self._sampler = Sampler(sequence.request.sampling, sequence.request.prompt_ids, path)
        self._draw: Draw | None = None
        self._logits: mx.array | None = None

    def prefill(self, row: RowPlan) -> None:
        """Compute a chunk of the prompt.

        An inner chunk is waited for, so that no more than one is ever under way. The last one is not: it leaves the
        logits of the first token for `sample`.
        """
        step = self._cache.begin(StepPlan((row,)))
        hidden = self._model.hidden(step)
        if row.logits_at:
            self._logits = self._model.head(step.select(hidden))
            mx.async_eval(self._logits)  # pyright: ignore[reportUnknownMemberType]
        else:
            mx.eval(*step.state())  # pyright: ignore[reportUnknownMemberType]
        self._cache.commit(row.slot, row.num_tokens)
        self.sequence.prefilled += row.num_tokens

    def build(self) -> None:
        """Build the forward of the token that was sampled last; nothing is computed yet."""
        row = RowPlan(self._slot, None, self.sequence.position, (0,))
        step = self._cache.begin(StepPlan((row,)), self._pending.token)
        self._logits = self._model.head(step.select(self._model.hidden(step)))

    def start(self) -> None:
        """Start the forward that was built. MLX's CPU backend returns when most of it is computed, others at once."""
        mx.async_eval(self._built)  # pyright: ignore[reportUnknownMemberType]

    def read(self) -> int:
        """Wait for the token that was sampled last.

        Raises:
            LogitsNotFiniteError: its logits were not numbers.
        """
        token_id = self._pending.read()
        if token_id is None:
            raise LogitsNotFiniteError(f"request {self.sequence.request_id}, position {self.sequence.position}")
        return token_id

    def accept(self, token_id: int) -> None:
        """Keep the token that was read: its forward, built before, becomes part of the sequence."""
        self._cache.commit(self._slot, 1)
        self._sampler.add(token_id)

    def sample(self, mask: Items[bool] | None) -> None:
        """Start drawing the next token.

        Args:
            mask: what the sequence's constraint allows by now.
        """
        draw = self._sampler.draw(self._built, mask)
        mx.async_eval(draw.token, draw.witness)  # pyright: ignore[reportUnknownMemberType]
        self._draw, self._logits = draw, None
        if self.sequence.state is State.PREFILLING:
            self.sequence.move(State.DECODING)

    @property
    def _built(self) -> mx.array:
        if self._logits is None:
            raise RowOrderError("no logits were built")
        return self._logits

    @property
    def _pending(self) -> Draw:
        if self._draw is None:
            raise RowOrderError("no token was sampled")
        return self._draw

    @property
    def _slot(self) -> int:
        if self.sequence.slot is None:
            raise RowOrderError("the row holds no slot")
        return self.sequence.slot
