"""From a checkpoint to a model that is ready to step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx

from models.checkpoint.checkpoint import Checkpoint
from models.checkpoint.errors import CheckpointRejected
from models.checkpoint.tokenizer import Tokenizer
from models.checkpoint.weights import Weights
from models.layers.arithmetic import Arithmetic
from models.layers.cache import KVCache, Step
from models.layers.device import device_name
from models.layers.mlx_arithmetic import MlxArithmetic, MlxCpuArithmetic
from models.layers.native_arithmetic import NativeArithmetic
from models.llama import Config, Llama
from models.step import NumericPath
from native import kernels

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
        arithmetic: `mlx` or `native`: whose operations it is made of.
        weights_bytes: bytes that the weights take in memory.
    """

    model: TextModel
    tokenizer: Tokenizer
    checkpoint: Checkpoint
    path: NumericPath
    device: str
    compute_dtype: str
    arithmetic: str
    weights_bytes: int


def load(
    checkpoint: Checkpoint, path: NumericPath, report: Callable[[LoadProgress], None], *, cpu_kernels: bool = True
) -> LoadedModel:
    """Read a checkpoint into memory on MLX's default device.

    Call it on the thread that will step the model: MLX's streams belong to threads.

    Args:
        checkpoint: its headers, already checked.
        path: how to compute.
        report: called with each bit of progress, on this thread.
        cpu_kernels: whether the fast path computes with native kernels where the device is the CPU and they are built.

    Raises:
        CheckpointError: an architecture without an entry here, or a tensor that is missing, left over, of another
            shape or unreadable.
    """
    device = device_name()
    dtype, arithmetic = _compute_dtype(checkpoint, device), _arithmetic(path, device, cpu_kernels=cpu_kernels)
    weights = Weights(
        checkpoint, dtype, arithmetic, on_read=lambda done, total: report(LoadProgress("reading", done, total))
    )
    model = _build(checkpoint, weights)
    weights.audit()
    weights.materialize(lambda done, total: report(LoadProgress("weights", done, total)))
    tokenizer = checkpoint.tokenizer()
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        checkpoint=checkpoint,
        path=path,
        device=device,
        compute_dtype=_word(dtype),
        arithmetic=arithmetic.name,
        weights_bytes=weights.nbytes,
    )


def _build(checkpoint: Checkpoint, weights: Weights) -> TextModel:
    builder = _BUILDERS.get(checkpoint.architecture)
    if builder is None:
        problem = f"the architecture {checkpoint.architecture} is not one of {', '.join(_BUILDERS)}"
        raise CheckpointRejected(problem, file="config.json", key="model_type")
    return builder(checkpoint.config, weights)


def _llama(config: Mapping[str, Any], weights: Weights) -> TextModel:
    return Llama(Config.from_checkpoint(config), weights)


_BUILDERS: Mapping[str, Callable[[Mapping[str, Any], Weights], TextModel]] = {"llama": _llama}


def _arithmetic(path: NumericPath, device: str, *, cpu_kernels: bool) -> Arithmetic:
    if path is NumericPath.REFERENCE or device != "cpu":
        return MlxArithmetic()
    return NativeArithmetic() if cpu_kernels and kernels.is_available() else MlxCpuArithmetic()


def _compute_dtype(checkpoint: Checkpoint, device: str) -> mx.Dtype:
    """Return float32 on the CPU, where half precision runs at a fortieth of its speed; else what is stored."""
    if device == "cpu":
        return mx.float32
    tensors = checkpoint.tensors
    embedding = tensors.get("model.embed_tokens.scales") or tensors.get("model.embed_tokens.weight")
    return _DTYPES.get(embedding.dtype if embedding else "", mx.bfloat16)


def _word(dtype: mx.Dtype) -> str:
    return str(dtype).rpartition(".")[2]
