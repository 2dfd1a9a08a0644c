"""From a checkpoint to a model that is ready to step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx

from models.checkpoint.checkpoint import Checkpoint
from models.checkpoint.errors import CheckpointRejected
from models.checkpoint.tokenizer import Tokenizer
from models.checkpoint.weights import ReportBytes, Weights
from models.layers.cache import KVCache, Step
from models.layers.device import device_name
from models.llama import Config, Llama
from models.step import NumericPath

# The fast path on the CPU keeps packed weights in float32 while all of them take no more than this. Measured with mlx
# 0.32.4 and OpenBLAS on two cores, SmolLM2-135M: decode 20.6 tokens/s against 10.5, a prompt of 128 at 468 against 282.
_CPU_EXPANDED_BYTES = 1 << 30
# Larger ones stay packed, and are expanded for a call from this many rows on. Measured (1536 x 576, 4 bits): packed
# 0.57 ms for one row and 1.14 ms for two, expanded 0.81 ms and 0.85 ms.
_CPU_EXPAND_ROWS = 2
_DTYPES: Mapping[str, mx.Dtype] = {"F16": mx.float16, "BF16": mx.bfloat16, "F32": mx.float32}


class TextModel(Protocol):
    """What every text architecture offers."""

    def make_cache(self, num_slots: int) -> KVCache:
        """Return an empty cache for `num_slots` sequences."""
        ...

    def hidden(self, step: Step) -> mx.array:
        """Compute [B, T, E] for an open step."""
        ...

    def head(self, hidden: mx.array) -> mx.array:
        """Turn [B, N, E] into logits [B, N, V]."""
        ...


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How far a load is: its phase in one word, and bytes."""

    phase: str
    bytes_done: int
    bytes_total: int


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that can step.

    Attributes:
        model: the graph with its weights in memory.
        tokenizer: text to token ids and back.
        checkpoint: where both come from.
        path: how it computes.
        device: `cpu`, `metal` or `cuda`.
        compute_dtype: `float32`, `float16` or `bfloat16`.
        weights_bytes: bytes that the weights take in memory.
    """

    model: TextModel
    tokenizer: Tokenizer
    checkpoint: Checkpoint
    path: NumericPath
    device: str
    compute_dtype: str
    weights_bytes: int


def load(checkpoint: Checkpoint, path: NumericPath, report: Callable[[LoadProgress], None]) -> LoadedModel:
    """Read a checkpoint into memory on MLX's default device.

    Call it on the thread that will step the model: MLX's streams belong to threads.

    Args:
        checkpoint: its headers, already checked.
        path: how to compute.
        report: called with each bit of progress, on this thread.

    Raises:
        CheckpointError: an architecture without an entry here, or a tensor that is missing, left over, of another
            shape or unreadable.
    """
    device = device_name()
    weights = _weights(checkpoint, path, device, lambda done, total: report(LoadProgress("reading", done, total)))
    model = _build(checkpoint, weights, path)
    weights.audit()
    weights.materialize(lambda done, total: report(LoadProgress("weights", done, total)))
    tokenizer = checkpoint.tokenizer()
    return LoadedModel(model, tokenizer, checkpoint, path, device, _word(weights.compute_dtype), weights.nbytes)


def _build(checkpoint: Checkpoint, weights: Weights, path: NumericPath) -> TextModel:
    builder = _BUILDERS.get(checkpoint.architecture)
    if builder is None:
        problem = f"the architecture {checkpoint.architecture} is not one of {', '.join(_BUILDERS)}"
        raise CheckpointRejected(problem, file="config.json", key="model_type")
    return builder(checkpoint.config, weights, path)


def _llama(config: Mapping[str, Any], weights: Weights, path: NumericPath) -> TextModel:
    return Llama(Config.from_checkpoint(config), weights, path)


_BUILDERS: Mapping[str, Callable[[Mapping[str, Any], Weights, NumericPath], TextModel]] = {"llama": _llama}


def _weights(checkpoint: Checkpoint, path: NumericPath, device: str, on_read: ReportBytes) -> Weights:
    dtype = _compute_dtype(checkpoint, device)
    if device != "cpu" or path is NumericPath.REFERENCE:
        return Weights(checkpoint, dtype, on_read=on_read)
    keep_packed = _expanded_bytes(checkpoint) > _CPU_EXPANDED_BYTES
    return Weights(checkpoint, dtype, keep_packed=keep_packed, expand_rows=_CPU_EXPAND_ROWS, on_read=on_read)


def _expanded_bytes(checkpoint: Checkpoint) -> int:
    """Return the bytes that all packed weights of a checkpoint take in float32."""
    if checkpoint.quantization is None:
        return 0
    tensors, num_weights = checkpoint.tensors, 0
    for module in (name.removesuffix(".scales") for name in tensors if name.endswith(".scales")):
        layer, codes = checkpoint.quantization.for_layer(module), tensors.get(f"{module}.weight")
        if layer is not None and codes is not None:
            num_weights += codes.nbytes * 8 // layer.bits
    return num_weights * mx.float32.size


def _compute_dtype(checkpoint: Checkpoint, device: str) -> mx.Dtype:
    """Return float32 on the CPU, where half precision runs at a fortieth of its speed; else what is stored."""
    if device == "cpu":
        return mx.float32
    tensors = checkpoint.tensors
    embedding = tensors.get("model.embed_tokens.scales") or tensors.get("model.embed_tokens.weight")
    return _DTYPES.get(embedding.dtype if embedding else "", mx.bfloat16)


def _word(dtype: mx.Dtype) -> str:
    return str(dtype).rpartition(".")[2]
