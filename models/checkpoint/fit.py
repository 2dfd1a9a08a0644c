"""What a text model takes of memory, part by part, before any of its weights is read; no MLX.

Every part is the most that it takes, so the whole is seldom reached: a prefix cache fills over time, and rows seldom
have their whole context. What can be counted is counted from the headers; what cannot, the process itself, was
measured (`bench/fit.py`). Arrays that MLX frees and keeps for the next ones are not counted: with kernels of our own
that is little, without them it has no bound.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from models.checkpoint.checkpoint import TextCheckpoint
from models.checkpoint.kv_scheme import KVScheme
from models.checkpoint.kv_sizes import KVSizes, kv_layers
from models.checkpoint.routed_experts import routed_experts
from models.checkpoint.sizes import Computation, WeightSizes, tensor_bytes, text_weight_sizes
from models.checkpoint.slab_sizes import SlabSizes, can_be_slabs, slab_sizes
from models.checkpoint.text_config import LinearAttentionConfig, TextConfig

# A worker without a model. Measured on Linux: 60 MB, less where other processes share its libraries.
PROCESS_BYTES = 60_000_000
# What a tokenizer with its merges takes for each of its tokens. Measured: 25 MB for the 49,152 of SmolLM2.
TOKEN_BYTES = 510
_FLOAT_BYTES = 4
# Widths for which MLX's fused attention has a kernel; others compute all scores. Source: the reference system.
_FUSED_HEAD_DIMS = frozenset({64, 72, 80, 96, 128})
# Logits, and what a draw makes of them: with kernels in place, by MLX sorted, summed up and masked.
_KERNEL_LOGITS, _MLX_LOGITS = 2, 8
# Queries that MLX's operations are given at once on the CPU (`models.layers.attention`).
_QUERY_BLOCK_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Run:
    """How a model is run.

    Attributes:
        context_tokens: prompt and output of one row.
        num_rows: sequences that run at once.
        num_logits: of them, those that get logits in one step.
        kv_tokens: whose keys and values the rows may hold together.
        chunk_tokens: of prompts in one step.
        prefix_bytes: of keys, values and states that are kept for later prompts.
        adapters_bytes: of mounted adapters.
        experts_bytes: of routed experts in memory; None: all of them.
    """

    context_tokens: int
    num_rows: int
    num_logits: int
    kv_tokens: int
    chunk_tokens: int
    prefix_bytes: int
    adapters_bytes: int = 0
    experts_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Fit:
    """What a model takes, in bytes.

    Attributes:
        weights_bytes: as they lie in memory, without routed experts.
        experts_bytes: of routed experts in memory.
        kv_bytes: keys and values of all rows, and their states.
        kv_row_bytes: those of one row at its whole context.
        kv_token_bytes: what one more token adds to a row that is longer than every window.
        prefix_bytes: keys and values that are kept for later prompts.
        transient_bytes: what the largest step computes on its way.
        process_bytes: the process with its libraries and its tokenizer.
        adapters_bytes: of mounted adapters.
        all_experts_bytes: of routed experts were they all in memory; no part of the whole.
    """

    weights_bytes: int
    experts_bytes: int
    kv_bytes: int
    kv_row_bytes: int
    kv_token_bytes: int
    prefix_bytes: int
    transient_bytes: int
    process_bytes: int
    adapters_bytes: int = 0
    all_experts_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """All parts together."""
        parts = (self.weights_bytes, self.experts_bytes, self.kv_bytes, self.prefix_bytes, self.adapters_bytes)
        return sum(parts) + self.transient_bytes + self.process_bytes


@dataclass(frozen=True, slots=True)
class ExpertNeeds:
    """What routed experts take, in bytes.

    Attributes:
        resident_bytes: all of them in memory, as they are computed with.
        converted_bytes: of these, what is not computed with as it is stored, or put together, and so is not mapped.
        slabs: what they take in slabs; None: they are not stored so that slabs can hold them.
    """

    resident_bytes: int
    converted_bytes: int
    slabs: SlabSizes | None


class TextSizes:
    """What one checkpoint takes, however long its context is.

    Args:
        checkpoint: its headers.
        computation: where and with what it is computed.
        scheme: how keys and values are kept.

    Attributes:
        kv: what keys and values take.
        experts: what routed experts take; None: it has none.
    """

    def __init__(self, checkpoint: TextCheckpoint, computation: Computation, scheme: KVScheme) -> None:
        self.kv = KVSizes(kv_layers(checkpoint.text), scheme, computation.item_bytes)
        self._text = checkpoint.text
        self._computation = computation
        self._is_plain = scheme.is_plain
        self._weights = text_weight_sizes(checkpoint, computation)
        self.experts = _expert_needs(checkpoint, computation, self._weights)

    def fit(self, run: Run) -> Fit:
        """Return what the model takes when it runs so.

        Raises:
            KVSchemeError: its layers cannot keep keys and values so.
        """
        return Fit(
            weights_bytes=self._weights.resident_bytes,
            experts_bytes=self._weights.experts_bytes if run.experts_bytes is None else run.experts_bytes,
            kv_bytes=self.kv.rows_bytes(run.kv_tokens, run.num_rows),
            kv_row_bytes=self.kv.sequence_bytes(run.context_tokens),
            kv_token_bytes=self.kv.growth_bytes,
            prefix_bytes=run.prefix_bytes,
            transient_bytes=self._step_bytes(run) + self._logits_bytes(run.num_logits),
            process_bytes=PROCESS_BYTES + TOKEN_BYTES * self._text.vocab_size,
            adapters_bytes=run.adapters_bytes,
            all_experts_bytes=self._weights.experts_bytes,
        )

    def _step_bytes(self, run: Run) -> int:
        """Return what a step of prompts takes: hidden states, scores, and what is kept for the step alone."""
        computation = self._computation
        num_tokens = max(min(run.chunk_tokens, run.context_tokens), run.num_rows)
        hidden = num_tokens * computation.item_bytes * _widths(self._text)
        chunk = num_tokens * self.kv.window_bytes
        unpacked = 0 if self._is_plain else 2 * run.context_tokens * self.kv.largest_layer_bytes
        expands = computation.device == "cpu" and not computation.has_kernels and not computation.is_reference
        expanded = self._weights.largest_expanded_bytes if expands else 0
        return hidden + chunk + unpacked + expanded + self._scores_bytes(num_tokens, run.context_tokens)

    def _scores_bytes(self, num_tokens: int, context_tokens: int) -> int:
        """Return what the scores of a layer take where no kernel avoids them, with what their softmax gives."""
        computation, text = self._computation, self._text
        if computation.has_kernels:
            return 0
        if computation.device == "cpu":
            queries = num_tokens if computation.is_reference else min(num_tokens, _QUERY_BLOCK_TOKENS)
            return 2 * text.num_attention_heads * queries * context_tokens * _FLOAT_BYTES
        if {layer.head_dim for layer in self.kv.layers} <= _FUSED_HEAD_DIMS:
            return 0
        return text.num_attention_heads * num_tokens * context_tokens * computation.item_bytes

    def _logits_bytes(self, num_logits: int) -> int:
        copies = _KERNEL_LOGITS if self._computation.has_kernels else _MLX_LOGITS
        return copies * num_logits * self._text.vocab_size * _FLOAT_BYTES


def _expert_needs(checkpoint: TextCheckpoint, computation: Computation, sizes: WeightSizes) -> ExpertNeeds | None:
    experts = routed_experts(checkpoint)
    if experts is None:
        return None
    slabs = None
    if can_be_slabs(checkpoint, computation.read_as):
        slabs = slab_sizes(checkpoint, experts, lambda info: tensor_bytes(checkpoint, info, computation))
    return ExpertNeeds(sizes.experts_bytes, sizes.converted_experts_bytes, slabs)


def largest_context(total_bytes: Callable[[int], float], most_tokens: int, budget_bytes: int) -> int:
    """Return the longest context of at most `most_tokens` that fits; 0: none does.

    Args:
        total_bytes: what a context of so many tokens takes; it grows with them.
        most_tokens: where to stop.
        budget_bytes: what there is.
    """
    return bisect_right(range(1, most_tokens + 1), budget_bytes, key=total_bytes)


def _widths(text: TextConfig) -> int:
    """Return how many numbers a token has in the widest place of a layer.

    The residual and its sum, and beside them what attention, the feed-forward part or its experts have at once; and,
    where layers have embeddings of their own, those of all layers, made of two.
    """
    width, heads = text.hidden_size, text.num_attention_heads
    kinds = {(text.head_dim, text.num_key_value_heads), (text.global_head_dim, text.num_global_key_value_heads)}
    attention = width + max(2 * (heads + kv_heads) * head_dim for head_dim, kv_heads in kinds)
    if any(text.linear_layers):
        attention = max(attention + 2 * heads * text.head_dim, _linear_widths(text.linear_attention, width))
    inner = text.intermediate_size * (2 if text.is_double_wide and text.num_kv_shared_layers else 1)
    own = 2 * text.num_hidden_layers * text.hidden_size_per_layer_input
    beside = 3 * inner if text.experts.is_enabled else 0
    return 2 * width + max(attention, 3 * inner, beside + _mixture_width(text)) + own


def _mixture_width(text: TextConfig) -> int:
    """Return how many numbers a token has among experts: in each of its own, their answers twice, and its logits."""
    experts = text.experts
    chosen = experts.num_chosen * (3 * experts.intermediate_size + 2 * text.hidden_size)
    return chosen + experts.num_experts + 3 * experts.shared_size


def _linear_widths(config: LinearAttentionConfig, width: int) -> int:
    """Return the same of linear attention: channels before and after their convolution, a gate, and what is found."""
    values = config.num_value_heads * config.value_head_dim
    return width + 2 * (2 * config.num_key_heads * config.key_head_dim + values) + 4 * values
