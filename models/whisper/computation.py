"""Where and with what a Whisper checkpoint is computed; no MLX."""

from __future__ import annotations

from models.checkpoint.checkpoint import Checkpoint
from models.checkpoint.sizes import Computation, Device

# Never packed, so of the dtype that the rest was trained or converted in.
_NORM = "decoder.ln"


def whisper_computation(
    checkpoint: Checkpoint, device: Device, *, has_kernels: bool, is_reference: bool = False
) -> Computation:
    """Say how a Whisper checkpoint is computed with; see `Computation.of`."""
    return Computation.of(
        checkpoint,
        device,
        has_kernels=has_kernels,
        is_reference=is_reference,
        module=_NORM,
        default_dtype="F16",
    )
