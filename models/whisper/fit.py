"""What a Whisper model takes of memory, part by part, before any of its weights is read; no MLX.

See `models.checkpoint.fit`. A row is a window of 30 seconds that is being written down: what the decoder looks at of
its speech, and the keys and values of the text so far. A request for beams, or for the best of several texts, takes the
latter as many times.
"""

from __future__ import annotations

from models.checkpoint.checkpoint import Checkpoint
from models.checkpoint.fit import PROCESS_BYTES, TOKEN_BYTES, Fit
from models.checkpoint.sizes import Computation, Device, weight_sizes
from models.whisper.config import Config

_EMBEDDING = "decoder.token_embedding"
_POSITIONS = "encoder.positional_embedding"
_FLOAT_BYTES = 4
# Windows that the encoder hears at once: on a CPU, and elsewhere (`worker.speech.loading`).
CPU_HEARD_AT_ONCE, HEARD_AT_ONCE = 1, 2
# Numbers that a position has at once in the encoder, as multiples of its width. Measured (`bench/fit.py`): kernels are
# queued up to half a dozen blocks ahead of what is computed, hold what they will read and write, and leave what the
# next pass does not take as it was; MLX's own operations wait sooner.
_KERNEL_WIDTHS, _MLX_WIDTHS = 115, 38


def whisper_computation(
    checkpoint: Checkpoint, device: Device, *, has_kernels: bool, is_reference: bool = False
) -> Computation:
    """Say how a Whisper checkpoint is computed with; see `Computation.of`."""
    return Computation.of(
        checkpoint,
        device,
        has_kernels=has_kernels,
        is_reference=is_reference,
        embedding=_EMBEDDING,
        default_dtype="F16",
    )


def window_bytes(checkpoint: Checkpoint, computation: Computation) -> int:
    """Return the bytes of a window's speech, and of one text at its longest, as every layer of the decoder has them.

    Raises:
        CheckpointRejected: its sizes fit no Whisper model.
    """
    config = Config.from_checkpoint(checkpoint.config)
    positions = config.n_audio_ctx + config.n_text_ctx
    return 2 * config.n_text_layer * positions * config.n_text_state * computation.item_bytes


def whisper_fit(checkpoint: Checkpoint, computation: Computation, num_rows: int) -> Fit:
    """Return what a model takes.

    Args:
        checkpoint: what `open_whisper` gave.
        computation: where and with what it is computed.
        num_rows: windows that are written down at once.

    Raises:
        CheckpointRejected: its sizes fit no Whisper model.
    """
    config = Config.from_checkpoint(checkpoint.config)
    weights = weight_sizes(checkpoint, computation, lambda name: name != _POSITIONS)
    # Positions of the encoder are computed, and those of the file compared with them.
    positions = config.n_audio_ctx * config.n_audio_state * computation.item_bytes
    row_bytes = window_bytes(checkpoint, computation)
    return Fit(
        weights_bytes=weights.resident_bytes + positions,
        experts_bytes=weights.experts_bytes,
        kv_bytes=num_rows * row_bytes,
        kv_row_bytes=row_bytes,
        kv_token_bytes=0,
        prefix_bytes=0,
        transient_bytes=_step_bytes(config, computation, num_rows),
        process_bytes=PROCESS_BYTES + TOKEN_BYTES * config.n_vocab,
    )


def _step_bytes(config: Config, computation: Computation, num_rows: int) -> int:
    """Return what the encoder computes on its way for the windows it hears at once, and the logits of all rows."""
    positions, width = config.n_audio_ctx, config.n_audio_state
    hidden = (_KERNEL_WIDTHS if computation.has_kernels else _MLX_WIDTHS) * positions * width * computation.item_bytes
    pictures = config.num_frames * config.n_mels * _FLOAT_BYTES
    is_fused = computation.has_kernels or (computation.device != "cpu" and not computation.is_reference)
    scores = 0 if is_fused else 2 * config.n_audio_head * positions**2 * _FLOAT_BYTES
    logits = 2 * num_rows * config.n_vocab * _FLOAT_BYTES
    num_heard = min(CPU_HEARD_AT_ONCE if computation.device == "cpu" else HEARD_AT_ONCE, num_rows)
    return num_heard * (max(hidden, scores) + pictures) + logits
