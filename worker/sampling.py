"""Logits to tokens, for all rows of a step at once.

Order: processors, the constraint's mask, log-probabilities, top_p, min_p, XTC, top_k, then a draw at the temperature;
greedy takes the most probable token before any filter. Everything is submitted without waiting for the device. Rows
never influence each other: a token depends on the row's own logits, settings, seed and number of the draw.
"""

import math
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import cast

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from models.step import NumericPath
from native import sampling
from worker import draws
from worker.masks import Mask, stacked
from worker.processors import Processors, process
from worker.sequence import Drawn, SamplingSettings

GREEDY_BELOW = 1e-5  # a lower temperature leaves nothing to chance within float32
SEED_STRIDE = 0x9E3779B97F4A7C15
SEED_MASK = (1 << 64) - 1
UNIFORM_BITS = 24  # what a float32 holds of a number within 0 and 1


class DrawOrderError(RuntimeError):
    """Raised when a draw is asked for that depends on tokens which are not known yet."""


class Sampler:
    """How the tokens of one sequence are drawn; shares no state with any other.

    What is random comes from the seed and the number of the draw alone, so a seed gives the same text whatever else
    runs, and on any device but for rounding.

    Args:
        settings: what the request asked for.
        prompt_ids: the penalties count these too.
        min_tokens: so many tokens are accepted before one of `end_ids` can be drawn.
        end_ids: what would end the sequence.
        exempt_ids: XTC never removes these.
        top_logprobs: how many alternatives are reported beside the log-probability of the token; None: not even that.

    Attributes:
        processors: bias and penalties.
        exempt_ids: as given.
        top_logprobs: as given.
    """

    def __init__(
        self,
        settings: SamplingSettings,
        prompt_ids: tuple[int, ...],
        *,
        min_tokens: int = 0,
        end_ids: frozenset[int] = frozenset(),
        exempt_ids: frozenset[int] = frozenset(),
        top_logprobs: int | None = None,
    ) -> None:
        self.processors = Processors(settings, prompt_ids, end_ids)
        self.exempt_ids = sorted(exempt_ids)
        self.top_logprobs = top_logprobs
        self._settings = settings
        self._min_tokens = min_tokens
        self._num_accepted = 0

    @property
    def is_plain(self) -> bool:
        """Whether the tokens drawn so far do not matter, but for their number: several can be drawn ahead."""
        return self.processors.window is None

    def add(self, token_id: int) -> None:
        """Take the token that was drawn and accepted."""
        self.processors.add(token_id)
        self._num_accepted += 1

    def is_end_banned(self, ahead: int) -> bool:
        """Tell whether the token that comes so many after the accepted ones must not end the sequence."""
        return self._num_accepted + ahead < self._min_tokens

    def choice(self, ahead: int) -> list[float]:
        """Return how the token is drawn that comes so many after the accepted ones: a row of `draws.draw`.

        Raises:
            DrawOrderError: the penalties need the tokens in between.
        """
        if ahead and not self.is_plain:
            raise DrawOrderError(f"{ahead} tokens ahead of penalties")
        settings = self._settings
        needs_normalizer = float(self.top_logprobs is not None)
        if settings.temperature < GREEDY_BELOW:
            return [0.0, 1.0, -math.inf, draws.XTC_OFF, 0.0, 0.0, needs_normalizer]
        xtc, uniform = uniforms(settings.seed, self._num_accepted + ahead)
        return [
            1 / settings.temperature,
            settings.top_p,
            math.log(settings.min_p) if settings.min_p > 0 else -math.inf,
            settings.xtc_threshold if xtc < settings.xtc_probability else draws.XTC_OFF,
            float(settings.top_k),
            uniform,
            needs_normalizer,
        ]


@dataclass(frozen=True, slots=True)
class DrawPlan:
    """What one row of logits is drawn by.

    Attributes:
        sampler: of the row's sequence.
        ahead: the token comes so many after those that the sampler accepted.
        mask: which tokens may come, none beyond its end; None: all may.
    """

    sampler: Sampler
    ahead: int = 0
    mask: Mask | None = None


@dataclass(frozen=True, slots=True)
class Likelihoods:
    """Log-probabilities of some rows, on their way.

    Attributes:
        rows: which of the draw's.
        counts: how many alternatives each wants.
        chosen: of the tokens that were drawn; float32 [R].
        ids: the alternatives; uint32 [R, K].
        logprobs: of these; float32 [R, K].
    """

    rows: list[int]
    counts: list[int]
    chosen: mx.array
    ids: mx.array
    logprobs: mx.array

    def read(self) -> dict[int, tuple[float, tuple[tuple[int, float], ...]]]:
        """Return for each row what to say beside the token: its log-probability, and the alternatives that may come."""
        chosen = cast(list[float], self.chosen.tolist())
        ids, logprobs = cast(list[list[int]], self.ids.tolist()), cast(list[list[float]], self.logprobs.tolist())
        found: dict[int, tuple[float, tuple[tuple[int, float], ...]]] = {}
        for place, (row, count) in enumerate(zip(self.rows, self.counts, strict=True)):
            pairs = zip(ids[place][:count], logprobs[place][:count], strict=True)
            found[row] = (chosen[place], tuple(pair for pair in pairs if math.isfinite(pair[1])))
        return found


@dataclass(frozen=True, slots=True)
class Draw:
    """Tokens on their way.

    Attributes:
        tokens: uint32 [M], on the device; any where the logits were not numbers.
        witnesses: float32 [M], not finite where some logit of the row was not a number, or none was allowed.
        likelihoods: of the rows that report them; None where none does.
    """

    tokens: mx.array
    witnesses: mx.array
    likelihoods: Likelihoods | None

    @property
    def arrays(self) -> list[mx.array]:
        """All that `read` waits for."""
        if self.likelihoods is None:
            return [self.tokens, self.witnesses]
        found = self.likelihoods
        return [self.tokens, self.witnesses, found.chosen, found.ids, found.logprobs]

    def read(self) -> list[Drawn | None]:
        """Wait for the tokens; one for each row, None where its logits were not numbers or no token was allowed."""
        mx.eval(*self.arrays)  # pyright: ignore[reportUnknownMemberType]
        tokens, witnesses = cast(list[int], self.tokens.tolist()), cast(list[float], self.witnesses.tolist())
        reports = {} if self.likelihoods is None else self.likelihoods.read()
        return [
            Drawn(token, *reports.get(row, (None, ()))) if math.isfinite(witness) else None
            for row, (token, witness) in enumerate(zip(tokens, witnesses, strict=True))
        ]


class Drawer:
    """Draws the tokens of all rows of a step.

    Args:
        path: the reference path takes the most probable token of the log-probabilities in the dtype of the logits, as
            mlx-lm does, where rounding can make equals; the fast path takes that of the logits.
        is_native: whether the native kernels compute.
    """

    def __init__(self, path: NumericPath, *, is_native: bool) -> None:
        self._is_reference = path is NumericPath.REFERENCE
        self._is_native = is_native

    def draw(self, logits: mx.array, plans: Items[DrawPlan]) -> Draw:
        """Build the draw of a token for each row.

        Args:
            logits: [M, V], any floating dtype.
            plans: one for each row.

        Raises:
            DrawOrderError: a plan is ahead of a sampler that has penalties.
        """
        logits = logits if self._is_reference else logits.astype(mx.float32)
        end_bans = [plan.sampler.is_end_banned(plan.ahead) for plan in plans]
        logits = process(logits, [plan.sampler.processors for plan in plans], end_bans)
        logits = masked(logits, [plan.mask for plan in plans], is_native=self._is_native)
        if self._is_reference:
            logits = (logits - mx.logsumexp(logits, axis=-1, keepdims=True)).astype(mx.float32)
        choices = np.array([plan.sampler.choice(plan.ahead) for plan in plans], np.float32)
        tokens, normalizers = self._choose(logits, choices, exempt_ids(plans, choices))
        return Draw(tokens, normalizers, self._likelihoods(logits, tokens, normalizers, plans))

    def _choose(
        self, logits: mx.array, choices: NDArray[np.float32], exempt: NDArray[np.int32]
    ) -> tuple[mx.array, mx.array]:
        if self._is_native:
            return sampling.draw(logits, mx.array(choices), mx.array(exempt))
        return draws.draw(logits, choices, exempt)

    def _likelihoods(
        self, logits: mx.array, tokens: mx.array, normalizers: mx.array, plans: Items[DrawPlan]
    ) -> Likelihoods | None:
        wanted = [(row, count) for row, plan in enumerate(plans) if (count := plan.sampler.top_logprobs) is not None]
        if not wanted:
            return None
        rows, counts = [row for row, _ in wanted], [count for _, count in wanted]
        if len(rows) < len(plans):
            index = mx.array(rows)
            logits, tokens, normalizers = logits[index], tokens[index], normalizers[index]
        normalizers = normalizers[:, None]
        chosen = mx.take_along_axis(logits, tokens[:, None], axis=-1) - normalizers
        top = sampling.top if self._is_native else draws.top
        ids, values = top(logits, max(1, min(max(counts), logits.shape[-1])))
        return Likelihoods(rows, counts, mx.flatten(chosen), ids, values - normalizers)


def uniforms(seed: int, step: int) -> tuple[float, float]:
    """Return two independent numbers within 0 and 1, 1 excluded: for XTC and for the draw.

    Args:
        seed: unsigned, 64 bits.
        step: counts the draws of the sequence from 0.

    Source: the finalizer of SplitMix64: Steele et al. 2014, doi:10.1145/2660193.2660195.
    """
    mixed = (seed ^ ((step + 1) * SEED_STRIDE)) & SEED_MASK
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 & SEED_MASK
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB & SEED_MASK
    mixed ^= mixed >> 31
    highest = mixed >> (64 - UNIFORM_BITS)
    next_highest = mixed >> (64 - 2 * UNIFORM_BITS) & ((1 << UNIFORM_BITS) - 1)
    return math.ldexp(next_highest, -UNIFORM_BITS), math.ldexp(highest, -UNIFORM_BITS)


def masked(logits: mx.array, masks: list[Mask | None], *, is_native: bool) -> mx.array:
    """Make minus infinity of what masks forbid; [M, V] in and out, and nothing to do where there are no masks."""
    if all(mask is None for mask in masks):
        return logits
    width = logits.shape[-1]
    words = stacked(masks, width)
    if is_native:
        return sampling.restrict(logits, mx.array(words))
    allowed = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, :width]
    return mx.where(mx.array(allowed).astype(mx.bool_), logits, -math.inf)


def exempt_ids(plans: Items[DrawPlan], choices: NDArray[np.float32]) -> NDArray[np.int32]:
    """Return what XTC must leave in each row, filled up with -1; int32 [M, N], N = 0 where it removes none at all."""
    if not (choices[:, draws.XTC_THRESHOLD] < draws.XTC_OFF).any():
        return np.zeros((len(plans), 0), np.int32)
    most = max(len(plan.sampler.exempt_ids) for plan in plans)
    padded = np.full((len(plans), most), -1, np.int32)
    for row, plan in zip(padded, plans, strict=True):
        row[: len(plan.sampler.exempt_ids)] = plan.sampler.exempt_ids
    return padded
