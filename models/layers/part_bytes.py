"""Arrays of a part as bytes and back: a list of their dtypes and shapes, then their elements."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from models.errors import BytesRejected

_LENGTH_BYTES = 4
_DTYPES = {str(dtype): dtype for dtype in (mx.float32, mx.float16, mx.bfloat16, mx.uint8, mx.uint32, mx.int8, mx.int32)}


def bytes_of(contents: Sequence[tuple[mx.array, ...] | None]) -> bytes:
    """Return what each layer holds as bytes, once it is computed."""
    heads = [
        None if content is None else [[str(array.dtype), list(array.shape)] for array in content]
        for content in contents
    ]
    head = json.dumps(heads).encode()
    pieces = [len(head).to_bytes(_LENGTH_BYTES, "little"), head]
    for content in contents:
        pieces.extend(np.array(mx.view(mx.flatten(array), mx.uint8)).tobytes() for array in content or ())
    return b"".join(pieces)


def arrays_of(data: bytes, num_layers: int) -> tuple[tuple[mx.array, ...] | None, ...]:
    """Return what `bytes_of` was given.

    Raises:
        BytesRejected: the bytes are not of that form, or of another number of layers.
    """
    try:
        start = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
        heads = json.loads(data[_LENGTH_BYTES:start])
        contents: list[tuple[mx.array, ...] | None] = []
        for head in heads:
            if head is None:
                contents.append(None)
                continue
            arrays: list[mx.array] = []
            for word, shape in head:
                dtype = _DTYPES[word]
                end = start + math.prod(shape) * dtype.size
                arrays.append(_array(data[start:end], dtype, shape))
                start = end
            contents.append(tuple(arrays))
    except (ValueError, KeyError, TypeError) as error:
        raise BytesRejected from error
    if start != len(data) or len(contents) != num_layers:
        raise BytesRejected
    return tuple(contents)


def _array(data: bytes, dtype: mx.Dtype, shape: list[int]) -> mx.array:
    return mx.reshape(mx.view(mx.array(np.frombuffer(data, dtype=np.uint8)), dtype), shape)
