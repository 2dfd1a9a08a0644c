"""How the shapes of a packed matrix, or of a stack of them, say that it is packed; headers only, no MLX."""

from __future__ import annotations

from models.checkpoint.checkpoint import Checkpoint
from models.checkpoint.errors import CheckpointCorrupt, CheckpointRejected
from models.checkpoint.quantization import AFFINE_BITS, AFFINE_GROUP_SIZES, LayerQuantization
from models.checkpoint.tensors import TensorInfo

_WORD_BITS = 32


def packing_of(
    checkpoint: Checkpoint, module: str, shape: tuple[int, ...], stated: LayerQuantization
) -> LayerQuantization:
    """Return how the shapes say that a weight is packed, which a config's default may state otherwise.

    Only what the config says of this module itself must agree. Source: mlx-lm 0.32.2, `utils.load_model`.

    Args:
        checkpoint: its headers.
        module: canonical name.
        shape: of the weights before they were packed: [rows, columns], or [X, rows, columns].
        stated: how the config says that it is packed.

    Raises:
        CheckpointCorrupt: a tensor is missing, or is packed in no way, or otherwise than is stated.
        CheckpointRejected: it is packed in a mode that is not run.
    """
    codes, scales = _info(checkpoint, f"{module}.weight"), _info(checkpoint, f"{module}.scales")
    file, key = codes.file.name, codes.stored_name
    if stated.mode != "affine":
        raise CheckpointRejected(f"is packed in the mode {stated.mode}, which is not run", file=file, key=key)
    is_packed = codes.dtype == "U32" and len(codes.shape) == len(scales.shape) == len(shape)
    if not is_packed or not scales.shape[-1]:
        raise CheckpointCorrupt("is not packed as MLX packs weights", file=file, key=key)
    found = LayerQuantization(codes.shape[-1] * _WORD_BITS // shape[-1], shape[-1] // scales.shape[-1])
    runs = found.bits in AFFINE_BITS and found.group_size in AFFINE_GROUP_SIZES
    explicit = checkpoint.quantization is not None and module in checkpoint.quantization.per_layer
    if not runs or (explicit and found != stated):
        raise CheckpointCorrupt(f"is packed as {found}, not {stated}", file=file, key=key)
    return found


def packed_shape(shape: tuple[int, ...], packing: LayerQuantization) -> tuple[int, ...]:
    """Return the shape of the codes of weights of a shape."""
    return (*shape[:-1], shape[-1] * packing.bits // _WORD_BITS)


def groups_shape(shape: tuple[int, ...], packing: LayerQuantization) -> tuple[int, ...]:
    """Return the shape of their scales."""
    return (*shape[:-1], shape[-1] // packing.group_size)


def _info(checkpoint: Checkpoint, name: str) -> TensorInfo:
    info = checkpoint.tensors.get(name)
    if info is None:
        raise CheckpointCorrupt("is missing", file=checkpoint.weights_file, key=name)
    return info
