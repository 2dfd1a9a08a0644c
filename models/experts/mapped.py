"""Experts as arrays over the pack itself: nothing is read before a step needs it, and nothing is copied.

The pages belong to the system's cache, which lets go of them when memory is short. An array's mapping goes with the
last array on it, so with the model; which tensors are mapped is known to the weights of that model alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import mlx.core as mx

import native
from models.checkpoint.errors import CheckpointCorrupt, CheckpointMissing
from models.checkpoint.raw_arrays import MLX_DTYPES
from models.checkpoint.tensors import TensorInfo
from models.experts.errors import MappingUnavailable
from models.experts.pack import Pack

MapArray = Callable[[Path, int, Sequence[int], mx.Dtype], mx.array]


def can_map() -> bool:
    """Tell whether this install maps files into arrays without copying them."""
    return native.is_built() and native.mapping_kind() != "copied"


class MappedExperts:
    """Gives the tensors of one pack as arrays over its file.

    Args:
        pack: checked.
        map_array: makes an array of a range of a file; raises `native.MappingError`.

    Raises:
        MappingUnavailable: this install cannot map files.
    """

    def __init__(self, pack: Pack, map_array: MapArray = native.map_array) -> None:
        if not can_map():
            raise MappingUnavailable
        self._pack = pack
        self._map_array = map_array

    def array(self, info: TensorInfo) -> mx.array | None:
        """Return a tensor in its stored shape and dtype; None where it does not lie in the pack.

        Raises:
            CheckpointCorrupt: the pack is no longer the file that was checked.
            CheckpointMissing: the system does not map it.
        """
        if info.file != self._pack.file or info.dtype not in MLX_DTYPES:
            return None
        try:
            array = self._map_array(self._pack.file, info.offset, info.stored_shape, MLX_DTYPES[info.dtype])
        except native.FileUnreadable as error:
            raise CheckpointMissing("cannot be mapped", file=self._pack.file.name, key=info.stored_name) from error
        except native.MappingError as error:
            raise CheckpointCorrupt("is truncated", file=self._pack.file.name, key=info.stored_name) from error
        self._pack.check_unchanged()
        return array
