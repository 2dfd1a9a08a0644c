"""Weights that are stored as whole numbers and a scale for each row, or one for all: as CTranslate2 stores them.

A weight is its number divided by its row's scale. Rows of bytes are read as codes of MLX's affine format, 8 bits each,
of which they are a special case: value = step * code + bias, where step = 1 / scale, code = number + 128 and
bias = -128 * step.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from models.checkpoint.errors import CheckpointCorrupt
from models.checkpoint.raw_numbers import read_raw_numbers
from models.checkpoint.tensors import IntegerPart, IntegerRows, TensorInfo

_ZERO_CODE = 128
_ITEM_BYTES = {"I8": 1, "I16": 2}


def read_integers(info: TensorInfo, rows: IntegerRows) -> npt.NDArray[Any]:
    """Read a tensor of a matrix of whole numbers: see `IntegerPart`.

    Raises:
        CheckpointCorrupt: the file is shorter than its header says, cannot be read, or has a scale of nought.
    """
    if rows.part is IntegerPart.CODES:
        return (_numbers(info, rows).view(np.uint8) ^ np.uint8(_ZERO_CODE)).view("<u4")
    steps = 1 / _scales(info, rows)
    if rows.part is IntegerPart.WEIGHTS:
        return _numbers(info, rows).astype(np.float32) * steps.reshape(-1, *(1 for _ in rows.shape[1:]))
    values = steps if rows.part is IntegerPart.STEPS else -_ZERO_CODE * steps
    return np.repeat(values[:, None], info.shape[1], axis=1)


def _numbers(info: TensorInfo, rows: IntegerRows) -> npt.NDArray[Any]:
    nbytes = math.prod(rows.shape) * _ITEM_BYTES[rows.dtype]
    return read_raw_numbers(replace(info, dtype=rows.dtype, shape=rows.shape, axes=(), nbytes=nbytes))


def _scales(info: TensorInfo, rows: IntegerRows) -> npt.NDArray[np.float32]:
    """Return a scale for each row, or one."""
    where = replace(info, dtype="F32", shape=(rows.num_scales,), axes=(), nbytes=4 * rows.num_scales)
    scales = read_raw_numbers(replace(where, offset=rows.scales_offset))
    if not (np.isfinite(scales).all() and scales.all()):
        raise CheckpointCorrupt(
            "has a scale by which nothing can be divided", file=info.file.name, key=info.stored_name
        )
    return scales
