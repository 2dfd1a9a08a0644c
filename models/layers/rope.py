"""Rotary positions, and the ways in which they are stretched beyond the length of training.

Source: Su et al. 2021, arXiv:2104.09864; linear: Chen et al. 2023, arXiv:2306.15595; llama3: the rule that came with
Llama 3.1. Halves are rotated against each other (i with i + D/2), as Hugging Face stores the weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import mlx.core as mx

from models.checkpoint.dialects import read_float
from models.checkpoint.errors import CheckpointRejected
from models.layers.cache import Span
from native import kernels

_KINDS = ("default", "linear", "llama3")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """How positions turn into angles.

    Attributes:
        theta: base of the wavelengths: pair i turns by position / theta^(2i / D) radians.
        kind: `default`, `linear` (every position divided by `factor`) or `llama3` (only long wavelengths stretched).
        factor: how much longer the context is than in training.
        low_freq_factor: llama3: wavelengths over original_context_tokens / this are stretched by the whole factor.
        high_freq_factor: llama3: wavelengths under original_context_tokens / this stay.
        original_context_tokens: llama3: context of training, in tokens.
        traditional: whether neighbours (2i, 2i + 1) are rotated instead of halves.
    """

    theta: float
    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context_tokens: float = 8192.0
    traditional: bool = False

    @property
    def position_scale(self) -> float:
        """What positions are multiplied by before they turn into angles."""
        return 1 / self.factor if self.kind == "linear" else 1.0

    @classmethod
    def from_checkpoint(cls, raw: Mapping[str, Any], file: str = "config.json") -> RopeConfig:
        """Read `rope_theta`, `rope_scaling` and `rope_traditional` of a checkpoint's config.

        Raises:
            CheckpointRejected: a kind that this build lacks, or a missing number, by key.
        """
        theta = read_float(raw, "rope_theta", file, default=10_000.0)
        traditional = raw.get("rope_traditional") is True
        scaling = cast("Mapping[str, Any]", raw.get("rope_scaling") or {})
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        if kind not in _KINDS:
            words = ", ".join(_KINDS)
            raise CheckpointRejected(f"the type {kind} is not one of {words}", file=file, key="rope_scaling.rope_type")
        if kind == "default":
            return cls(theta, traditional=traditional)
        numbers = {f"rope_scaling.{key}": value for key, value in scaling.items()}
        factor = read_float(numbers, "rope_scaling.factor", file)
        if kind == "linear":
            return cls(theta, "linear", factor, traditional=traditional)
        return cls(
            theta,
            "llama3",
            factor,
            read_float(numbers, "rope_scaling.low_freq_factor", file, default=1.0),
            read_float(numbers, "rope_scaling.high_freq_factor", file, default=4.0),
            read_float(numbers, "rope_scaling.original_max_position_embeddings", file, default=8192.0),
            traditional,
        )


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
    """Return float32 [D / 2]: tokens a radian for each pair, of the kind llama3.

    Short wavelengths stay, long ones are stretched by the factor, and those between by a mixture of both that changes
    linearly with the number of turns within the original context.
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
