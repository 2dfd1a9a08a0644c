"""What a Whisper model takes of memory, part by part, before any of its weights is read; no MLX.

See `models.checkpoint.fit`. A row is a text that is being written of a window of 30 seconds: its keys and values, and
what the decoder looks at of the speech. A window for which several texts are written, as beams are, has as many rows
and the speech once; what it leaves of that is for the copies that the texts are moved by.
"""

from __future__ import annotations

from models.checkpoint.checkpoint import Checkpoint
from models.checkpoint.fit import PROCESS_BYTES, TOKEN_BYTES, Fit
from models.checkpoint.sizes import Computation, weight_sizes
from models.whisper.config import Config

_POSITIONS = "encoder.positional_embedding"
_FLOAT_BYTES = 4
# Windows that one pass of the encoder hears: on a CPU, and elsewhere. A CPU hears two together no faster than one after
# the other (measured with Whisper base: 1.1 s of two cores both ways), and whoever else has a window open waits.
CPU_HEARD_AT_ONCE, HEARD_AT_ONCE = 1, 2
# Numbers that a position has at once in the encoder, as multiples of its width. Measured (`bench/fit.py`): kernels are
# queued up to half a dozen blocks ahead of what is computed, hold what they will read and write, and leave what the
# next pass does not take as it was; MLX's own operations wait sooner.
_KERNEL_WIDTHS, _MLX_WIDTHS = 115, 38


def cache_bytes(config: Config, item_bytes: int, num_windows: int = 1, num_texts: int = 1) -> int:
    """Return the bytes of the speech of windows, and of texts at their longest, as all layers of the decoder have them.

    Args:
        config: the sizes of the model.
        item_bytes: of a number.
        num_windows: whose speech.
        num_texts: of all of them.
    """
    positions = num_windows * config.n_audio_ctx + num_texts * config.n_text_ctx
    return 2 * config.n_text_layer * positions * config.n_text_state * item_bytes


def whisper_fit(checkpoint: Checkpoint, computation: Computation, num_rows: int) -> Fit:
    """Return what a model takes.

    Args:
        checkpoint: what `open_whisper` gave.
        computation: where and with what it is computed.
        num_rows: texts that are written at once.

    Raises:
        CheckpointRejected: its sizes fit no Whisper model.
    """
    config = Config.from_checkpoint(checkpoint.config)
    weights = weight_sizes(checkpoint, computation, lambda name: name != _POSITIONS)
    # Positions of the encoder are computed, and those of the file compared with them.
    positions = config.n_audio_ctx * config.n_audio_state * computation.item_bytes
    row_bytes = cache_bytes(config, computation.item_bytes)
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
