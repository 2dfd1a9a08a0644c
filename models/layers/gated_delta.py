"""Gated linear attention by the delta rule: a memory that is decayed, corrected and read, token by token.

    mixed = silu(convolution over the last K tokens of queries, keys and values)
    S_t = g_t S_(t-1) + beta_t (v_t - g_t S_(t-1) k_t) k_t^T,    y_t = S_t q_t

with queries and keys of length 1, and queries divided by the root of their width. The state is what the convolution
sees again and S. Here by MLX's operations; `native.delta` does the same on the CPU.

Source: Yang et al. 2024, arXiv:2412.06464; `Qwen3_5GatedDeltaNet` of transformers 5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import mlx.core as mx

from models.layers.delta_chunks import walk_in_chunks
from models.layers.recurrence import State, Walk

# Added to the squared length of queries and keys before its root.
_LENGTH_EPSILON = 1e-6

_Step = Callable[..., tuple[mx.array, mx.array]]


@dataclass(frozen=True, slots=True)
class DeltaRule:
    """What fixes the recurrence of one layer.

    Attributes:
        num_key_heads: heads H_k of queries and of keys; each serves H_v / H_k heads of values.
        num_value_heads: heads H_v of values.
        key_dim: width D_k of a head of keys.
        value_dim: width D_v of a head of values.
        convolution: [C, K, 1], C channels of queries, keys and values together, over K tokens.
        decay_logs: float32 [H_v]: a head forgets by exp(-exp(decay_log) * softplus(input + bias)).
        decay_biases: [H_v].
    """

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    convolution: mx.array
    decay_logs: mx.array
    decay_biases: mx.array

    @property
    def num_channels(self) -> int:
        """Channels C of queries, keys and values together."""
        return 2 * self.num_key_heads * self.key_dim + self.num_value_heads * self.value_dim

    @property
    def num_kept(self) -> int:
        """Tokens K - 1 that the convolution sees again."""
        return self.convolution.shape[1] - 1

    def empty_state(self, dtype: mx.Dtype) -> State:
        """Return the state before the first token: [1, K - 1, C] in `dtype`, and float32 [1, H_v, D_v, D_k]."""
        memory = mx.zeros((1, self.num_value_heads, self.value_dim, self.key_dim), dtype=mx.float32)
        return mx.zeros((1, self.num_kept, self.num_channels), dtype=dtype), memory


class MlxGatedDelta:
    """The recurrence by MLX's operations, in mlx-lm's forms; see `models.layers.recurrence.Recurrence`.

    Its inputs are queries, keys and values together [1, N, C], what decays [1, N, H_v] and what corrects [1, N, H_v];
    it gives [1, N, H_v * D_v].

    Args:
        rule: the layer's.
        compiles: whether each token's operations become one kernel, as in mlx-lm: it rounds otherwise than separate
            operations.
        in_chunks: whether many tokens are taken at once, in a fraction of the time: it rounds otherwise than one by
            one, as mlx-lm takes them.
    """

    def __init__(self, rule: DeltaRule, *, compiles: bool, in_chunks: bool) -> None:
        self._rule = rule
        self._in_chunks = in_chunks
        self._step: _Step = mx.compile(_step) if compiles else _step
        self._factors = mx.compile(_factors, shapeless=True) if compiles else _factors
        self._silu = mx.compile(_silu, shapeless=True) if compiles else _silu

    def __call__(self, inputs: Sequence[mx.array], walks: Sequence[Walk]) -> tuple[mx.array, list[list[State]]]:
        """Go through the tokens of all rows: those of one token together, others row by row."""
        if len(walks) > 1 and all(walk.count == 1 for walk in walks):
            return self._together(inputs, walks)
        mixed: list[mx.array] = []
        states: list[list[State]] = []
        for walk in walks:
            own = [x[:, walk.first : walk.first + walk.count] for x in inputs] if len(walks) > 1 else inputs
            found, reached = self._walk(own, walk.pieces, walk.state or self._rule.empty_state(inputs[0].dtype))
            mixed.append(found)
            states.append(reached)
        return mixed[0] if len(mixed) == 1 else mx.concatenate(mixed, axis=1), states

    def _together(self, inputs: Sequence[mx.array], walks: Sequence[Walk]) -> tuple[mx.array, list[list[State]]]:
        """Go through rows of one token each as a batch."""
        empty = self._rule.empty_state(inputs[0].dtype)
        before = [mx.concatenate(list(parts)) for parts in zip(*(walk.state or empty for walk in walks), strict=True)]
        each = [mx.swapaxes(x, 0, 1) for x in inputs]  # [1, R, ...] -> [R, 1, ...]
        found, reached = self._walk(each, (1,), tuple(before))
        # Copies: a part of an array would keep the whole of it.
        rows = [mx.array([row]) for row in range(len(walks))]
        states = [[tuple(mx.take(array, row, axis=0) for array in reached[0])] for row in rows]
        return mx.swapaxes(found, 0, 1), states

    def _walk(self, inputs: Sequence[mx.array], pieces: Sequence[int], state: State) -> tuple[mx.array, list[State]]:
        """Go through the tokens [B, T, ...] of rows that are cut alike."""
        rule, (seen, memory) = self._rule, state
        mixed, decays, corrections = inputs
        mixed = mx.concatenate([seen, mixed], axis=1)  # [B, K - 1 + T, C]
        heads = self._heads(self._silu(mx.conv1d(mixed, rule.convolution, groups=rule.num_channels)))
        weights, decay = mx.sigmoid(corrections), (rule.decay_logs, decays, rule.decay_biases)
        if self._in_chunks and decays.shape[1] > 1:
            found, memories = walk_in_chunks(heads, _logs(*decay), weights, pieces, memory)
        else:
            found, memories = self._one_by_one((*heads, self._factors(*decay), weights), pieces, memory)
        seen_after = [mx.contiguous(mixed[:, done : done + rule.num_kept]) for done in accumulate(pieces)]
        return mx.flatten(found, 2), list(zip(seen_after, memories, strict=True))  # [B, T, H_v * D_v]

    def _one_by_one(
        self, inputs: Sequence[mx.array], pieces: Sequence[int], memory: mx.array
    ) -> tuple[mx.array, list[mx.array]]:
        """Return [B, T, H_v, D_v] and the memory after each piece."""
        found: list[mx.array] = []
        memories: list[mx.array] = []
        done = 0
        for piece in pieces:
            for token in range(done, done + piece):
                y, memory = self._step(*(x[:, token] for x in inputs), memory)
                found.append(y)
            done += piece
            memories.append(memory)
        return mx.stack(found, axis=1), memories

    def _heads(self, mixed: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        """Cut [B, T, C] into queries and keys [B, T, H_v, D_k] of the right lengths, and values [B, T, H_v, D_v]."""
        rule = self._rule
        width, num_shared = rule.num_key_heads * rule.key_dim, rule.num_value_heads // rule.num_key_heads
        parts = mx.split(mixed, [width, 2 * width], axis=-1)
        queries, keys, values = (
            mx.unflatten(part, -1, (num_heads, -1))
            for part, num_heads in zip(
                parts, (rule.num_key_heads, rule.num_key_heads, rule.num_value_heads), strict=True
            )
        )
        # A mean of squares has the epsilon divided by the width.
        inverse_root = rule.key_dim**-0.5
        epsilon = _LENGTH_EPSILON * inverse_root**2
        queries = inverse_root**2 * mx.fast.rms_norm(queries, None, epsilon)
        keys = inverse_root * mx.fast.rms_norm(keys, None, epsilon)
        if num_shared > 1:
            queries, keys = mx.repeat(queries, num_shared, -2), mx.repeat(keys, num_shared, -2)
        return queries, keys, values


def _silu(x: mx.array) -> mx.array:
    return x * mx.sigmoid(x)


def _logs(logs: mx.array, x: mx.array, biases: mx.array) -> mx.array:
    """Return the logarithms of what is left of a memory, float32 of the shape of `x`."""
    return -mx.exp(logs.astype(mx.float32)) * mx.logaddexp(x + biases, 0)


def _factors(logs: mx.array, x: mx.array, biases: mx.array) -> mx.array:
    """Return what is left of a memory: between 0 and 1."""
    return mx.exp(_logs(logs, x, biases))


def _step(
    query: mx.array, key: mx.array, value: mx.array, factor: mx.array, weight: mx.array, memory: mx.array
) -> tuple[mx.array, mx.array]:
    """Go one token further: [B, H, D_k] twice, [B, H, D_v], [B, H] twice, and the memory [B, H, D_v, D_k]."""
    memory = memory * factor[..., None, None]
    known = (memory * key[..., None, :]).sum(axis=-1)  # [B, H, D_v]
    missing = (value - known) * weight[..., None]
    memory = memory + key[..., None, :] * missing[..., None]
    found = (memory * query[..., None, :]).sum(axis=-1)  # [B, H, D_v]
    return found.astype(query.dtype), memory
