"""Reading tensors that lie in a file as plain numbers; no MLX."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from models.checkpoint.errors import CheckpointCorrupt
from models.checkpoint.tensors import TensorInfo

# NumPy has no bfloat16: its bits are read as whole numbers.
_READ_AS = {
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I8": "<i1",
    "I16": "<i2",
    "I32": "<i4",
    "I64": "<i8",
    "U8": "<u1",
    "U16": "<u2",
    "U32": "<u4",
    "U64": "<u8",
}


def read_raw_numbers(info: TensorInfo) -> npt.NDArray[Any]:
    """Read the numbers of a tensor in its stored shape and dtype; of bfloat16 the bits, as uint16.

    Raises:
        CheckpointCorrupt: the file is shorter than its header says, or cannot be read.
    """
    dtype = np.dtype(_READ_AS[info.dtype])
    count = info.nbytes // dtype.itemsize
    try:
        numbers = np.fromfile(info.file, dtype, count, offset=info.offset)
    except OSError as error:
        raise CheckpointCorrupt("cannot be read", file=info.file.name, key=info.stored_name) from error
    if numbers.size != count:
        raise CheckpointCorrupt("breaks off", file=info.file.name, key=info.stored_name)
    return numbers.reshape(info.stored_shape)
