"""Logits to a token.

Order: processors, the constraint's mask, log-probabilities, top_p, min_p, top_k, then a draw at the temperature; greedy
takes the most probable token before any filter. Everything is submitted without waiting for the device.
"""

import math
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import cast

import mlx.core as mx

from models.step import NumericPath
from worker.processors import Processors
from worker.sequence import SamplingSettings

GREEDY_BELOW = 1e-5  # a lower temperature leaves nothing to chance within float32
SEED_STRIDE = 0x9E3779B97F4A7C15
SEED_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Draw:
    """A token on its way.

    Attributes:
        token: uint32 [], on the device.
        witness: float32 [], not finite where some logit was not a number, or all were -inf.
    """

    token: mx.array
    witness: mx.array

    def read(self) -> int | None:
        """Wait for the token; None where the logits were not numbers, or none was allowed."""
        token_id, witness = cast(int, self.token.item()), cast(float, self.witness.item())
        return token_id if math.isfinite(witness) else None


class Sampler:
    """Draws the tokens of one sequence; shares no state with any other.

    The random key of each draw comes from the seed and the number of the draw alone, so a seed gives the same text
    whatever else runs.

    Args:
        settings: what the request asked for.
        prompt_ids: the penalties count these too.
        path: the reference path takes the most probable token of the log-probabilities in the dtype of the logits, as
            mlx-lm does, where rounding can make equals; the fast path takes that of the logits, a sixth of the work.
    """

    def __init__(
        self, settings: SamplingSettings, prompt_ids: tuple[int, ...], path: NumericPath = NumericPath.FAST
    ) -> None:
        self._settings = settings
        self._is_reference = path is NumericPath.REFERENCE
        self._processors = Processors(settings, prompt_ids)
        self._is_greedy = settings.temperature < GREEDY_BELOW
        self._num_draws = 0

    def add(self, token_id: int) -> None:
        """Take the token that was drawn and accepted."""
        self._processors.add(token_id)

    def draw(self, logits: mx.array, mask: Items[bool] | None = None) -> Draw:
        """Build the draw of the next token.

        Args:
            logits: [.., V] of one position, any floating dtype.
            mask: for each token id whether it may come; None: all may.
        """
        logits = mx.flatten(logits)  # [.., V] -> [V]
        logits = self._processors.apply(logits if self._is_reference else logits.astype(mx.float32))
        if mask is not None:
            logits = mx.where(mx.array(list(mask), dtype=mx.bool_), logits, -math.inf)
        if self._is_greedy and not self._is_reference:
            return Draw(mx.argmax(logits), mx.max(logits))
        normalizer = mx.logsumexp(logits)
        if self._is_greedy:
            return Draw(mx.argmax(logits - normalizer), normalizer)
        key = step_key(self._settings.seed, self._num_draws)
        self._num_draws += 1
        return Draw(choose((logits - normalizer).astype(mx.float32), self._settings, key), normalizer)


def step_key(seed: int, step: int) -> int:
    """Return the seed of one draw, unsigned and 64 bits; `step` counts the draws of the sequence from 0."""
    return (seed ^ ((step + 1) * SEED_STRIDE)) & SEED_MASK


def choose(logprobs: mx.array, settings: SamplingSettings, key: int) -> mx.array:
    """Draw a token at a temperature.

    Args:
        logprobs: float32 [V], normalized.
        settings: temperature, not 0, and filters.
        key: seed of this draw.

    Returns:
        uint32 [].
    """
    kept, ids = keep(logprobs, settings)
    # Shifted so that the best is 0: a low temperature then leaves it 0 instead of making all of them -inf.
    place = mx.random.categorical((kept - kept.max()) / settings.temperature, key=mx.random.key(key))
    return place if ids is None else ids[place]


def keep(logprobs: mx.array, settings: SamplingSettings) -> tuple[mx.array, mx.array | None]:
    """Apply top_p, min_p and top_k.

    All three keep the most probable tokens, so which runs first does not matter as long as top_p knows the mass that
    top_k dropped; and sorting k tokens is cheap where sorting the vocabulary is not.

    Args:
        logprobs: float32 [V], normalized.
        settings: the filters.

    Returns:
        Log-probabilities with -inf for what was dropped, float32 [K]; and their token ids, uint32 [K], or None where
        they are those of all tokens in order.
    """
    kept, ids, dropped = logprobs, None, None
    if 0 < settings.top_k < logprobs.size:
        ids = mx.argpartition(-logprobs, settings.top_k - 1)[: settings.top_k]  # [V] -> [K]
        kept = logprobs[ids]
        dropped = mx.exp(logprobs).sum() - mx.exp(kept).sum()
    if 0 < settings.top_p < 1:
        kept = keep_top_p(kept, settings.top_p, dropped)
    if settings.min_p > 0:
        kept = mx.where(kept >= kept.max() + math.log(settings.min_p), kept, -math.inf)
    return kept, ids


def keep_top_p(logprobs: mx.array, top_p: float, dropped: mx.array | None = None) -> mx.array:
    """Keep the most probable tokens that together reach `top_p`, and at least one; the rest become -inf.

    Args:
        logprobs: float32 [N], any order.
        top_p: within 0 and 1.
        dropped: float32 [], the mass of less probable tokens that are not among them.
    """
    order = mx.argsort(logprobs)  # [N], least probable first
    mass = mx.cumsum(mx.exp(logprobs[order]))
    if dropped is not None:
        mass = mass + dropped
    is_kept = mass > 1 - top_p
    is_kept[-1] = True
    keep = mx.put_along_axis(mx.zeros(logprobs.shape, dtype=mx.bool_), order, is_kept, axis=0)
    return mx.where(keep, logprobs, -math.inf)
