"""What a fused folder holds, told from headers alone; nothing here imports MLX.

Every tensor of the checkpoint keeps its name, its file and its bytes, but for the layers that the adapter changes. A
packed one among them is unpacked and stays so, since packing rounds away most of what an adapter adds; on demand it is
packed again as it was, where it was packed by MLX's affine scheme.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from models.adapters.adapter import AdapterHeader
from models.checkpoint.auxiliary_files import auxiliary_files
from models.checkpoint.checkpoint import TextCheckpoint
from models.checkpoint.errors import CheckpointRejected
from models.checkpoint.packing import packing_of
from models.checkpoint.quantization import LayerQuantization
from models.checkpoint.safetensors import DTYPE_BYTES, read_safetensors_header
from models.checkpoint.tensors import StoredTensor, TensorInfo
from models.disk import SPARE_BYTES
from models.fusing.errors import FuseOutputExists, FuseUnwritable

# Of an entry of a header: names, numbers and what separates them.
_ENTRY_BYTES = 512
_PARTS = ("weight", "scales", "biases", "global_scale")
# What weights become whose packing has no floats that say it.
_UNPACKED_DTYPE = "BF16"


@dataclass(frozen=True, slots=True)
class FusedLayer:
    """A layer that the adapter changes.

    Attributes:
        module: canonical name.
        shape: outputs and inputs.
        parts: its stored tensors, `weight` and what it is packed with, by these words.
        packing: how it is packed; None: it is not.
        is_packed_again: whether what is written is packed as well.
        dtype: of the weights as floats.
    """

    module: str
    shape: tuple[int, int]
    parts: Mapping[str, TensorInfo]
    packing: LayerQuantization | None
    is_packed_again: bool
    dtype: str


@dataclass(frozen=True, slots=True)
class FusedTensor:
    """A tensor to write.

    Attributes:
        name: as it is stored.
        dtype: in the words of safetensors.
        shape: outermost dimension first.
        source: where its bytes are copied from; None: they are computed.
        layer: of which it is computed; None: it is copied.
        part: what it is of the layer.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    source: StoredTensor | None
    layer: FusedLayer | None = None
    part: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of its numbers."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class FusedFile:
    """A file of weights to write: which one of the checkpoint it stands for, and its tensors in their order."""

    source: Path
    metadata: Mapping[str, str]
    tensors: Sequence[FusedTensor]


@dataclass(frozen=True, slots=True)
class FusePlan:
    """What fusing would write.

    Attributes:
        source: folder of the checkpoint.
        path: the folder to make.
        files: of its weights.
        layers: those that the adapter changes, by their modules.
        needed_bytes: of the disk, at most.
        free_bytes: of the disk now, but for what others are left.
    """

    source: Path
    path: Path
    files: Sequence[FusedFile]
    layers: Mapping[str, FusedLayer]
    needed_bytes: int
    free_bytes: int

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for file in self.files for tensor in file.tensors)

    @property
    def num_unpacked(self) -> int:
        """Layers that are packed in the checkpoint and will not be."""
        return sum(1 for layer in self.layers.values() if layer.packing is not None and not layer.is_packed_again)

    @property
    def num_packed(self) -> int:
        """Layers that are packed again."""
        return sum(1 for layer in self.layers.values() if layer.is_packed_again)

    @property
    def keeps_packed(self) -> bool:
        """Whether anything is still packed."""
        return any(tensor.name.endswith(".scales") for file in self.files for tensor in file.tensors)


def plan_fuse(
    folder: Path, checkpoint: TextCheckpoint, adapter: AdapterHeader, path: Path, *, packs_again: bool
) -> FusePlan:
    """Say what fusing a model and an adapter would write.

    Args:
        folder: of the checkpoint.
        checkpoint: its headers.
        adapter: its headers, found to fit.
        path: the folder to make.
        packs_again: whether layers of MLX's affine packing are packed as they were.

    Raises:
        CheckpointRejected: the checkpoint stores a layer in a way that is not written.
        FuseOutputExists: there is something at `path`.
        FuseUnwritable: the folder that it is to be in is not there.
    """
    if os.path.lexists(path):
        raise FuseOutputExists(path.name)
    layers = {
        matched.target.module: _layer(
            checkpoint, matched.target.module, (matched.target.outputs, matched.target.inputs), packs_again=packs_again
        )
        for matched in adapter.layers
    }
    files = [_file(source, layers.values()) for source in sorted({info.file for info in checkpoint.tensors.values()})]
    tensors = [tensor for file in files for tensor in file.tensors]
    try:
        others = sum((folder / name).stat().st_size for name in (*auxiliary_files(folder), "config.json"))
        free = max(0, shutil.disk_usage(path.parent).free - SPARE_BYTES)
    except OSError as error:
        raise FuseUnwritable(f"the folder that {path.name} is to be in cannot be used: {error.strerror}") from error
    needed = others + sum(tensor.nbytes + 2 * (_ENTRY_BYTES + len(tensor.name)) for tensor in tensors)
    return FusePlan(folder, path, files, layers, needed, free)


def _layer(checkpoint: TextCheckpoint, module: str, shape: tuple[int, int], *, packs_again: bool) -> FusedLayer:
    parts = {
        part: checkpoint.tensors[f"{module}.{part}"] for part in _PARTS if f"{module}.{part}" in checkpoint.tensors
    }
    weight = parts.get("weight")
    if weight is None or weight.is_raw or weight.axes:
        problem = "is stored in a form that is not written"
        raise CheckpointRejected(problem, file=checkpoint.weights_file, key=f"{module}.weight")
    packing = checkpoint.layer_quantization(module)
    if packing is None:
        return FusedLayer(module, shape, parts, None, is_packed_again=False, dtype=weight.dtype)
    if not packing.has_biases:
        return FusedLayer(module, shape, parts, packing, is_packed_again=False, dtype=_UNPACKED_DTYPE)
    packing = packing_of(checkpoint, module, shape, packing)
    return FusedLayer(module, shape, parts, packing, is_packed_again=packs_again, dtype=parts["scales"].dtype)


def _file(source: Path, layers: Iterable[FusedLayer]) -> FusedFile:
    header = read_safetensors_header(source)
    computed = {
        info.stored_name: (layer, part) for layer in layers for part, info in layer.parts.items() if info.file == source
    }
    tensors: list[FusedTensor] = []
    for stored in sorted(header.tensors.values(), key=lambda tensor: tensor.offset):
        layer, part = computed.get(stored.name, (None, ""))
        if layer is None:
            tensors.append(FusedTensor(stored.name, stored.dtype, stored.shape, stored))
        elif layer.is_packed_again:
            tensors.append(FusedTensor(stored.name, stored.dtype, stored.shape, None, layer, part))
        elif part == "weight":
            tensors.append(FusedTensor(stored.name, layer.dtype, layer.shape, None, layer, part))
    return FusedFile(source, header.metadata, tensors)
