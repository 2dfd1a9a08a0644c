"""Reading tensors that lie in a file as plain numbers, of files that MLX does not read itself."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from models.checkpoint.errors import CheckpointCorrupt
from models.checkpoint.tensors import TensorInfo

# NumPy has no bfloat16: its bits are read as whole numbers and named afterwards.
_READ_AS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I8": "<i1", "I16": "<i2", "I32": "<i4"}


def read_raw_array(info: TensorInfo) -> mx.array:
    """Read the numbers of a tensor in its stored shape and dtype.

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
    array = mx.array(numbers.reshape(info.stored_shape))
    return array.view(mx.bfloat16) if info.dtype == "BF16" else array
