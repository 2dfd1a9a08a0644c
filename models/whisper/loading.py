"""From a Whisper checkpoint to a model that is ready to hear."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import mlx.core as mx

from models.checkpoint.checkpoint import Checkpoint
from models.checkpoint.sizes import Computation
from models.checkpoint.weights import Weights
from models.layers.choosing import arithmetic_of, dtype_of
from models.layers.device import device_name
from models.step import NumericPath
from models.whisper.computation import whisper_computation
from models.whisper.config import Config
from models.whisper.model import Whisper
from models.whisper.operations import FusedOperations, NativeOperations, Operations, ReferenceOperations
from models.whisper.tokenizer import WhisperTokenizer
from native import kernels


@dataclass(frozen=True, slots=True)
class LoadedWhisper:
    """A model that can hear.

    Attributes:
        model: the graph with its weights in memory.
        tokenizer: text to token ids and back.
        checkpoint: where both come from.
        path: how it computes.
        device: `cpu`, `metal` or `cuda`.
        dtype: of hidden states, keys and values.
        kernels: whose operations it is made of.
        weights_bytes: bytes that the weights take in memory.
    """

    model: Whisper
    tokenizer: WhisperTokenizer
    checkpoint: Checkpoint
    path: NumericPath
    device: str
    dtype: mx.Dtype
    kernels: Literal["mlx", "native"]
    weights_bytes: int


def load_whisper(
    checkpoint: Checkpoint,
    path: NumericPath,
    report: Callable[[str, int, int], None],
    *,
    cpu_kernels: bool = True,
    dtype: mx.Dtype | None = None,
) -> LoadedWhisper:
    """Read a checkpoint into memory on MLX's default device.

    Call it on the thread that will run the model: MLX's streams belong to threads.

    Args:
        checkpoint: what `open_whisper` gave.
        path: how to compute.
        report: called with (`reading` or `weights`, bytes done, bytes in all), on this thread.
        cpu_kernels: whether the fast path computes with native kernels where the device is the CPU and they are built.
        dtype: to compute in; None: float32 on the CPU, elsewhere as stored.

    Raises:
        CheckpointError: a size that fits no model, or a tensor that is missing, left over, of another shape or
            unreadable.
    """
    computation = whisper_computation(
        checkpoint,
        device_name(),
        has_kernels=cpu_kernels and kernels.is_available(),
        is_reference=path is NumericPath.REFERENCE,
    )
    config = Config.from_checkpoint(checkpoint.config)
    tokenizer = WhisperTokenizer(checkpoint.tokenizer(), config)
    arithmetic = arithmetic_of(computation)
    compute_dtype = dtype_of(computation) if dtype is None else dtype
    weights = Weights(checkpoint, compute_dtype, arithmetic, on_read=lambda done, total: report("reading", done, total))
    model = Whisper(config, weights, _operations(computation))
    weights.audit()
    weights.materialize(lambda done, total: report("weights", done, total))
    return LoadedWhisper(
        model=model,
        tokenizer=tokenizer,
        checkpoint=checkpoint,
        path=path,
        device=computation.device,
        dtype=compute_dtype,
        kernels=arithmetic.name,
        weights_bytes=weights.nbytes,
    )


def _operations(computation: Computation) -> Operations:
    if computation.is_reference:
        return ReferenceOperations()
    return NativeOperations() if computation.has_kernels else FusedOperations(compiles=computation.device != "cpu")
