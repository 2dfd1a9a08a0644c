"""Whisper: an encoder that hears 30 seconds at once, and a decoder that writes what was said.

Source: Radford et al. 2022, arXiv:2212.04356; weights and details as OpenAI's and Apple's implementations have them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from models.checkpoint.weights import Weights
from models.layers.linear import LinearGroup
from models.whisper.config import Config
from models.whisper.operations import Operations, attention_scores
from models.whisper.state import Memory, Texts

_MAX_TIMESCALE = 10_000
_POSITIONS = "encoder.positional_embedding"
# float16 holds a sine to 2^-12; MLX's own sine of 1,500 radians is no worse.
_POSITION_TOLERANCE = 1e-3
_CONV_TAPS = 3


@dataclass(frozen=True, slots=True)
class Part:
    """New tokens of one window's texts: tokens [B, T]."""

    tokens: mx.array
    texts: Texts


class LayerNorm:
    """Mean 0 and variance 1 for each position, then a weight and a bias."""

    def __init__(self, weights: Weights, module: str, width: int, operations: Operations) -> None:
        self._operations = operations
        self._weight = weights.tensor(f"{module}.weight", (width,))
        self._bias = weights.tensor(f"{module}.bias", (width,))

    def __call__(self, x: mx.array) -> mx.array:
        """Normalize the last axis of `x`."""
        return self._operations.layer_norm(x, self._weight, self._bias)


class Attention:
    """Queries, keys and values of all heads; keys add no bias."""

    def __init__(self, weights: Weights, module: str, width: int, num_heads: int) -> None:
        query, value, out = (
            weights.linear(f"{module}.{name}", width, width, bias=True) for name in ("query", "value", "out")
        )
        key = weights.linear(f"{module}.key", width, width)
        self.num_heads = num_heads
        self.query = query
        self.out = out
        self._all = LinearGroup((query, key, value), weights.arithmetic)
        self._memory = LinearGroup((key, value), weights.arithmetic)

    def project(self, x: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        """Return queries, keys and values of x [B, T, E], each [B, T, E]."""
        queries, keys, values = self._all(x, None)
        return queries, keys, values

    def remember(self, audio: mx.array) -> tuple[mx.array, mx.array]:
        """Return keys and values of audio [B, C, E], each [B, C, E]."""
        keys, values = self._memory(audio, None)
        return keys, values


class MLP:
    """Four times as wide inside."""

    def __init__(self, weights: Weights, block: str, width: int, operations: Operations) -> None:
        self._norm = LayerNorm(weights, f"{block}.mlp_ln", width, operations)
        self._up = weights.linear(f"{block}.mlp1", 4 * width, width, bias=True)
        self._down = weights.linear(f"{block}.mlp2", width, 4 * width, bias=True)
        self._operations = operations

    def add_to(self, x: mx.array) -> mx.array:
        """Return `x` and what the layer gives for it together."""
        return self._down.add_to(x, self._operations.gelu(self._up(self._norm(x), None)), None)


class EncoderBlock:
    """Every position looks at all others."""

    def __init__(self, weights: Weights, block: str, config: Config, operations: Operations) -> None:
        width = config.n_audio_state
        self._norm = LayerNorm(weights, f"{block}.attn_ln", width, operations)
        self._attention = Attention(weights, f"{block}.attn", width, config.n_audio_head)
        self._mlp = MLP(weights, block, width, operations)
        self._operations = operations

    def __call__(self, x: mx.array) -> mx.array:
        """Turn x [B, C, E] into the next block's."""
        attention = self._attention
        queries, keys, values = attention.project(self._norm(x))
        mixed = self._operations.look_around(queries, keys, values, attention.num_heads)
        return self._mlp.add_to(attention.out.add_to(x, mixed, None))


class DecoderBlock:
    """Every token looks at the tokens before it, and at the speech."""

    def __init__(self, weights: Weights, layer: int, config: Config, operations: Operations) -> None:
        block, width, num_heads = f"decoder.blocks.{layer}", config.n_text_state, config.n_text_head
        self._layer = layer
        self._norm = LayerNorm(weights, f"{block}.attn_ln", width, operations)
        self._attention = Attention(weights, f"{block}.attn", width, num_heads)
        self._cross_norm = LayerNorm(weights, f"{block}.cross_attn_ln", width, operations)
        self.cross = Attention(weights, f"{block}.cross_attn", width, num_heads)
        self._mlp = MLP(weights, block, width, operations)
        self._operations = operations

    def __call__(self, x: mx.array, parts: Sequence[Part], scores: list[mx.array] | None) -> mx.array:
        """Turn x, all parts' tokens, into the next block's; add the scores [B, H, T, C] of the first part."""
        attention = self._attention
        split = [_split(array, parts) for array in attention.project(self._norm(x))]
        mixed: list[mx.array] = []
        for part, queries, keys, values in zip(parts, *split, strict=True):
            all_keys, all_values = part.texts.extend(self._layer, keys, values)
            mixed.append(self._operations.attend(queries, all_keys, all_values, attention.num_heads, causal=True))
        x = attention.out.add_to(x, _joined(mixed), None)
        cross = self.cross
        heard: list[mx.array] = []
        for part, queries in zip(parts, _split(cross.query(self._cross_norm(x), None), parts), strict=True):
            keys, values = part.texts.memory[self._layer]
            heard.append(self._operations.attend(queries, keys, values, cross.num_heads, causal=False))
            if scores is not None and part is parts[0]:
                scores.append(attention_scores(queries, keys, cross.num_heads))
        return self._mlp.add_to(cross.out.add_to(x, _joined(heard), None))


class Whisper:
    """The whole model.

    Args:
        config: its sizes.
        weights: its tensors.
        operations: what it computes with between products.

    Attributes:
        config: as given.
    """

    def __init__(self, config: Config, weights: Weights, operations: Operations) -> None:
        self.config = config
        self._operations = operations
        width = config.n_audio_state
        self._convolutions = [
            (
                weights.tensor(f"encoder.conv{number}.weight", (width, _CONV_TAPS, inputs)),
                weights.tensor(f"encoder.conv{number}.bias", (width,)),
                number,  # the second takes every other frame
            )
            for number, inputs in ((1, config.n_mels), (2, width))
        ]
        self._audio_positions = _audio_positions(weights, config)
        self._encoder = [
            EncoderBlock(weights, f"encoder.blocks.{layer}", config, operations)
            for layer in range(config.n_audio_layer)
        ]
        self._encoder_norm = LayerNorm(weights, "encoder.ln_post", width, operations)
        self._embedding = weights.embedding("decoder.token_embedding", config.n_vocab, config.n_text_state)
        self._text_positions = weights.tensor("decoder.positional_embedding", (config.n_text_ctx, config.n_text_state))
        self._decoder = [DecoderBlock(weights, layer, config, operations) for layer in range(config.n_text_layer)]
        self._decoder_norm = LayerNorm(weights, "decoder.ln", config.n_text_state, operations)
        self._head = weights.linear("decoder.token_embedding", config.n_vocab, config.n_text_state)
        self._dtype = weights.compute_dtype

    def encode(self, mels: mx.array) -> mx.array:
        """Hear windows.

        Args:
            mels: [B, frames of a window, M].

        Returns:
            [B, C, E].

        Raises:
            ValueError: `mels` has another shape.
        """
        expected = (self.config.num_frames, self.config.n_mels)
        if mels.shape[1:] != expected:
            raise ValueError(f"a window has {expected[0]} frames of {expected[1]} bands, not {mels.shape[1:]}")
        x = mels.astype(self._dtype)
        for weight, bias, stride in self._convolutions:
            x = self._operations.gelu(self._operations.convolve(x, weight, bias, stride))
        x = x + self._audio_positions
        for block in self._encoder:
            x = block(x)
        return self._encoder_norm(x)

    def remember(self, audio: mx.array) -> Memory:
        """Return what the decoder looks at of one window's audio [1, C, E]."""
        return [block.cross.remember(audio) for block in self._decoder]

    def hidden(self, parts: Sequence[Part], scores: list[mx.array] | None = None) -> list[mx.array]:
        """Go over new tokens of several windows, and keep their keys and values.

        Args:
            parts: of each window; its texts together stay within the model's positions.
            scores: takes every layer's cross-attention scores [B, H, T, C] of the first part, before the softmax.

        Returns:
            For each part [B, T, E].
        """
        x = _joined([self._embedded(part) for part in parts])
        for block in self._decoder:
            x = block(x, parts, scores)
        for part in parts:
            part.texts.advance(part.tokens.shape[1])
        return _split(self._decoder_norm(x), parts)

    def head(self, hidden: mx.array) -> mx.array:
        """Return logits [..., V] of hidden [..., E]."""
        return self._head(hidden, None)

    def _embedded(self, part: Part) -> mx.array:
        start = part.texts.length
        return self._embedding(part.tokens) + self._text_positions[start : start + part.tokens.shape[1]]


def _split(x: mx.array, parts: Sequence[Part]) -> list[mx.array]:
    """Return each part's [B, T, E] of all parts' [1, N, E]; one part alone stays as it is."""
    if len(parts) == 1:
        return [x]
    pieces: list[mx.array] = []
    start = 0
    for part in parts:
        stop = start + part.tokens.size
        pieces.append(mx.reshape(x[:, start:stop], (*part.tokens.shape, x.shape[-1])))
        start = stop
    return pieces


def _joined(pieces: list[mx.array]) -> mx.array:
    if len(pieces) == 1:
        return pieces[0]
    return mx.concatenate([mx.reshape(piece, (1, -1, piece.shape[-1])) for piece in pieces], axis=1)


def _audio_positions(weights: Weights, config: Config) -> mx.array:
    """Return [C, E]: waves of lengths from 2 pi to 10,000 times that, or what the checkpoint trained instead."""
    shape = config.n_audio_ctx, config.n_audio_state
    half = shape[1] // 2
    turns = mx.exp(-math.log(_MAX_TIMESCALE) / (half - 1) * mx.arange(half))
    angles = mx.arange(shape[0])[:, None] * turns[None]
    waves = mx.concatenate([mx.sin(angles), mx.cos(angles)], axis=1)
    if weights.has(_POSITIONS):
        stored = weights.take(_POSITIONS, shape)
        if not mx.allclose(stored, waves, rtol=0.0, atol=_POSITION_TOLERANCE).item():
            return weights.tensor(_POSITIONS, shape)
    return waves.astype(weights.compute_dtype)
