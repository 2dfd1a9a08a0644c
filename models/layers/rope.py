"""Rotary positions, and the ways in which they are stretched beyond the length of training.

Source: Su et al. 2021, arXiv:2104.09864; linear: Chen et al. 2023, arXiv:2306.15595; llama3: the rule that came with
Llama 3.1; yarn: Peng et al. 2023, arXiv:2309.00071; proportional: Gemma 4; longrope: Ding et al. 2024,
arXiv:2402.13753. Halves are rotated against each other (i with i + D/2), as Hugging Face stores the weights.

The kind `dynamic` of a config stretches a sequence once it is longer than max_position_embeddings. No sequence here is:
that number bounds every context, so what is computed is the plain rotation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, cast

import mlx.core as mx

from models.checkpoint.rope_parameters import LONG_KINDS, RopeParameters
from models.checkpoint.yarn import FAST_TURNS, SLOW_TURNS, Yarn
from models.layers.cache import Span
from native import kernels

# Of the kind llama3, where a config says nothing.
_LOW_FREQ_FACTOR = 1.0
_HIGH_FREQ_FACTOR = 4.0
_ORIGINAL_CONTEXT_TOKENS = 8192.0
# What widens a range of pairs that holds none, so that nothing is divided by zero.
_LEAST_RANGE = 0.001

Kind = Literal["default", "linear", "llama3", "yarn", "proportional", "longrope"]
# Of a config: as what it is computed.
_COMPUTED_AS = {"dynamic": "default"} | dict.fromkeys(LONG_KINDS, "longrope")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """How positions turn into angles.

    Attributes:
        theta: base of the wavelengths: pair i turns by position / theta^(2i / D) radians.
        kind: `default`, `linear` (every position divided by `factor`), `llama3` and `yarn` (only long wavelengths
            stretched, by two rules), `proportional` (of a head's D / 2 pairs only the first are turned, with the
            wavelengths of all) or `longrope` (each wavelength stretched by a factor of its own).
        factor: how much longer the context is than in training.
        low_freq_factor: llama3: wavelengths over original_context_tokens / this are stretched by the whole factor.
        high_freq_factor: llama3: wavelengths under original_context_tokens / this stay.
        original_context_tokens: llama3, yarn: context of training, in tokens.
        traditional: whether neighbours (2i, 2i + 1) are rotated instead of halves.
        share: of a head's width that is turned; but for `proportional` it is the first part, cut off from the rest.
        stretches: longrope: a factor for each pair: those for sequences beyond the original context, because keys that
            are cached cannot be turned again when a sequence grows beyond it.
        magnitude: what turned elements are multiplied by.
        fast_turns: yarn: a wavelength that turns more often than this within the original context stays.
        slow_turns: yarn: one that turns less often is stretched by the whole factor.
    """

    theta: float
    kind: Kind = "default"
    factor: float = 1.0
    low_freq_factor: float = _LOW_FREQ_FACTOR
    high_freq_factor: float = _HIGH_FREQ_FACTOR
    original_context_tokens: float = _ORIGINAL_CONTEXT_TOKENS
    traditional: bool = False
    share: float = 1.0
    stretches: tuple[float, ...] = ()
    magnitude: float = 1.0
    fast_turns: float = FAST_TURNS
    slow_turns: float = SLOW_TURNS

    @property
    def position_scale(self) -> float:
        """What positions are multiplied by before they turn into angles."""
        return 1 / self.factor if self.kind == "linear" else 1.0

    @property
    def has_frequencies(self) -> bool:
        """Whether wavelengths are another function than a power of theta."""
        return self.kind not in {"default", "linear"}

    def width(self, head_dim: int) -> int:
        """Return how many elements of a head of width `head_dim` lie in pairs."""
        return head_dim if self.kind == "proportional" else int(head_dim * self.share)

    @classmethod
    def of(cls, parameters: RopeParameters, *, traditional: bool = False, share: float | None = None) -> RopeConfig:
        """Take what a config states for one kind of attention, of a kind that `Architecture.rope_kinds` allows.

        Args:
            parameters: as read.
            traditional: whether neighbours are rotated.
            share: of a head's width that is turned, where it is stated apart.
        """
        low, high = parameters.low_freq_factor, parameters.high_freq_factor
        context = parameters.original_max_position_embeddings
        yarn = Yarn(magnitude=_magnitude(parameters)) if parameters.yarn is None else parameters.yarn
        return cls(
            theta=parameters.theta,
            kind=cast("Kind", _COMPUTED_AS.get(parameters.kind, parameters.kind)),
            factor=parameters.factor,
            low_freq_factor=_LOW_FREQ_FACTOR if low is None else low,
            high_freq_factor=_HIGH_FREQ_FACTOR if high is None else high,
            original_context_tokens=_ORIGINAL_CONTEXT_TOKENS if context is None else context,
            traditional=traditional,
            share=parameters.partial_rotary_factor if share is None else share,
            stretches=parameters.long_factor,
            magnitude=yarn.magnitude,
            fast_turns=yarn.fast_turns,
            slow_turns=yarn.slow_turns,
        )


def _magnitude(parameters: RopeParameters) -> float:
    """Return for longrope the root of 1 + ln(stretch) / ln(original context), else 1. Source: Ding et al. 2024."""
    if parameters.kind not in LONG_KINDS:
        return 1.0
    longest, original = parameters.max_position_embeddings, parameters.original_max_position_embeddings
    if longest is None or original is None or longest <= original or original <= 1:
        return 1.0
    return math.sqrt(1 + math.log(longest / original) / math.log(original))


@dataclass(frozen=True, slots=True)
class Angles:
    """Positions of the tokens of one step as angles, for the kernels of the CPU.

    Attributes:
        cosines: float32 [N, D / 2]; None: no positions.
        sines: the same.
        is_interleaved: whether neighbours are rotated against each other instead of halves.
    """

    cosines: mx.array | None
    sines: mx.array | None
    is_interleaved: bool = False

    def rotate(self, x: mx.array, span: Span) -> mx.array:
        """Turn one row's heads [1, H, T, D]."""
        if self.cosines is None or self.sines is None:
            return x
        tokens = slice(span.first, span.first + span.count)
        return kernels.rotate(x, self.cosines[tokens], self.sines[tokens], interleaved=self.is_interleaved)

    def rotate_each(self, x: mx.array) -> mx.array:
        """Turn heads [N, H, 1, D] of a step whose rows have one token each."""
        if self.cosines is None or self.sines is None:
            return x
        # [N, D / 2] -> [N, 1, D / 2]: a batch for each row
        return kernels.rotate(x, self.cosines[:, None], self.sines[:, None], interleaved=self.is_interleaved)


def frequencies(head_dim: int, config: RopeConfig) -> mx.array:
    """Return float32 [D / 2]: tokens a radian for each pair, where they are no plain power of theta.

    Args:
        head_dim: width D of a head.
        config: of a kind that has such frequencies.
    """
    if config.kind == "longrope":
        width = config.width(head_dim)
        powers = config.theta ** (mx.arange(0, width, 2, dtype=mx.float32) / width)
        return mx.array(config.stretches, dtype=mx.float32) * powers
    if config.kind == "yarn":
        return _yarn(config.width(head_dim), config)
    return _proportional(head_dim, config) if config.kind == "proportional" else _stretched(head_dim, config)


def _yarn(width: int, config: RopeConfig) -> mx.array:
    """Stretch the pairs that turn seldom, keep those that turn often, and mix those between by their number."""
    plain = config.theta ** (mx.arange(0, width, 2, dtype=mx.float32) / width)
    stretched = config.factor * plain
    first = max(math.floor(_pair_of(config.fast_turns, width, config)), 0)
    last = min(math.ceil(_pair_of(config.slow_turns, width, config)), width - 1)
    span = last - first if last != first else _LEAST_RANGE
    share_kept = 1.0 - mx.clip((mx.arange(width // 2, dtype=mx.float32) - first) / span, 0, 1)
    return (stretched * plain) / (stretched * share_kept + plain * (1 - share_kept))


def _pair_of(turns: float, width: int, config: RopeConfig) -> float:
    """Return the number of the pair, between two perhaps, that turns so often within the original context."""
    tokens = config.original_context_tokens / (turns * 2 * math.pi)
    return (width * math.log(tokens)) / (2 * math.log(config.theta))


def _proportional(head_dim: int, config: RopeConfig) -> mx.array:
    """Give the first pairs their places among all of a head, and never turn the rest. Source: Gemma 4."""
    num_turned = int(head_dim * config.share)
    exponents = mx.arange(0, num_turned, 2, dtype=mx.float32) / head_dim
    return mx.concatenate([config.factor * (config.theta**exponents), mx.full(((head_dim - num_turned) // 2,), mx.inf)])


def _stretched(head_dim: int, config: RopeConfig) -> mx.array:
    """Stretch long wavelengths by the factor and keep short ones.

    Those between become a mixture of both that changes linearly with the number of turns within the original context.
    """
    freqs = config.theta ** (mx.arange(0, head_dim, 2) / head_dim)
    wavelengths = (2 * math.pi) * freqs
    turns = config.original_context_tokens / wavelengths
    share_kept = (turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor)
    mixed = freqs / ((1 - share_kept) / config.factor + share_kept)
    longest_mixed = config.original_context_tokens / config.low_freq_factor
    shortest_mixed = config.original_context_tokens / config.high_freq_factor
    stretched = mx.where(wavelengths > longest_mixed, freqs * config.factor, freqs)
    return mx.where((wavelengths > shortest_mixed) & (wavelengths < longest_mixed), mixed, stretched)
