"""Reading the data of a GGUF tensor as the arrays that MLX's affine quantization has: codes, scales and biases.

MLX's own GGUF reader makes the same arrays, bit for bit, but opens the file for writing, so it fails on one that the
process may only read. Block layouts: ggml's `ggml-common.h` (`block_q4_0`, `block_q4_1`, `block_q8_0`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from models.checkpoint.errors import CheckpointCorrupt, CheckpointMissing
from models.checkpoint.files import open_regular
from models.checkpoint.tensors import TensorInfo

_LAYOUTS = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "Q4_0": np.dtype([("scale", "<f2"), ("codes", "u1", 16)]),
    "Q4_1": np.dtype([("scale", "<f2"), ("bias", "<f2"), ("codes", "u1", 16)]),
    "Q8_0": np.dtype([("scale", "<f2"), ("codes", "u1", 32)]),
}
_CODE_BITS = {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8}
# MLX's codes start at 0 where these start at the middle of their range: value = scale * code + bias.
_BIAS_IN_SCALES = {"Q4_0": np.float16(-8), "Q8_0": np.float16(-128)}
_SIGN_BIT = 0x80


def read_gguf_array(info: TensorInfo) -> npt.NDArray[Any]:
    """Read one array of a GGUF file, of the dtype and shape that `info` says.

    Raises:
        CheckpointMissing: the file is no longer there or cannot be read.
        CheckpointCorrupt: it has become shorter.
    """
    layout = _LAYOUTS[info.stored_type]
    # One scale a block, and as many 32-bit words of codes as a code has bits.
    count = math.prod(info.shape) // (_CODE_BITS[info.stored_type] if info.dtype == "U32" else 1)
    try:
        with open_regular(info.file) as file:
            file.seek(info.offset)
            content = file.read(count * layout.itemsize)
    except OSError as error:
        raise CheckpointMissing("cannot be read", file=info.file.name) from error
    if len(content) != count * layout.itemsize:
        raise CheckpointCorrupt("became shorter while it was read", file=info.file.name, key=info.stored_name)
    return _part(np.frombuffer(content, layout), info).reshape(info.shape)


def _part(blocks: npt.NDArray[Any], info: TensorInfo) -> npt.NDArray[Any]:
    if info.stored_type not in _CODE_BITS:
        return blocks
    if info.dtype == "U32":
        return _codes(blocks["codes"], _CODE_BITS[info.stored_type])
    if info.name.endswith(".scales"):
        return blocks["scale"].copy()
    if info.stored_type == "Q4_1":
        return blocks["bias"].copy()
    with np.errstate(over="ignore"):
        return blocks["scale"] * _BIAS_IN_SCALES[info.stored_type]


def _codes(stored: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint32]:
    """Pack codes as MLX does: in order, the first in the lowest bits of a 32-bit word."""
    if bits == 8:
        return (stored ^ _SIGN_BIT).view("<u4")
    # A byte holds codes i and i + 16 of its block of 32; MLX wants 2i and 2i + 1.
    codes = np.concatenate([stored & 0x0F, stored >> 4], axis=1)
    return np.ascontiguousarray(codes[:, 0::2] | codes[:, 1::2] << 4).view("<u4")
