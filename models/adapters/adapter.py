"""An adapter as a whole: checked by its headers first, then read.

What is read is what was checked: the header is compared again with the bytes that it came with.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from models.adapters.errors import AdapterRejected, as_adapters
from models.adapters.files import find_files
from models.adapters.matching import MatchedLayer, match
from models.adapters.settings import AdapterSettings, read_settings
from models.adapters.target import AdapterTarget
from models.checkpoint.files import read_bytes
from models.checkpoint.safetensors import SafetensorsHeader, read_safetensors_header
from models.checkpoint.tensors import StoredTensor

Numbers = npt.NDArray[Any]

# NumPy has no bfloat16: its bits stand as whole numbers.
_DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_BF16_EXPONENT = 0x7F80
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True, eq=False)
class LayerNumbers:
    """One layer's two matrices as they are stored.

    Attributes:
        a: float32 or float16, or the bits of bfloat16 as uint16; [inputs, rank], or transposed.
        b: the same; [rank, outputs], or transposed.
        is_bfloat16: for each of the two, whether it is bits.
        rank: between the two.
        scale: multiplies their product.
        is_transposed: whether they are [rank, inputs] and [outputs, rank].
    """

    a: Numbers
    b: Numbers
    is_bfloat16: tuple[bool, bool]
    rank: int
    scale: float
    is_transposed: bool


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """A checked adapter with its numbers, ready to be mounted.

    Attributes:
        revision: 64 hex digits that change with the weights and with what scales them.
        weights_sha256: of the file of the weights, in hex.
        layers: by canonical name of the module.
        rank: the largest of the layers.
        scale: as the settings state it.
        num_skipped: tensors of layers that the adapter does not count as its targets.
        nbytes: of the matrices.
    """

    revision: str
    weights_sha256: str
    layers: Mapping[str, LayerNumbers]
    rank: int
    scale: float
    num_skipped: int
    nbytes: int


@dataclass(frozen=True, slots=True, eq=False)
class AdapterHeader:
    """An adapter of which everything but the numbers is read and found to fit a model.

    Attributes:
        weights: path of the file.
        settings: by what its products are multiplied.
        header: of the file.
        layers: what it holds for which layer.
        num_skipped: tensors of layers that the adapter does not count as its targets.
    """

    weights: Path
    settings: AdapterSettings
    header: SafetensorsHeader
    layers: tuple[MatchedLayer, ...]
    num_skipped: int

    @property
    def nbytes(self) -> int:
        """Bytes of the matrices that it has for the model."""
        return sum(layer.a.nbytes + layer.b.nbytes for layer in self.layers)

    @property
    def data_bytes(self) -> int:
        """Bytes of all that its file holds, what is left out among it."""
        return sum(tensor.nbytes for tensor in self.header.tensors.values())

    def read(self) -> Adapter:
        """Read the numbers.

        Raises:
            AdapterRejected: the file cannot be read, is no longer what was checked, or holds what is no number.
        """
        content = _read(self.weights, self.header)
        digest = hashlib.sha256(content)
        weights_sha256 = digest.hexdigest()
        revision = hashlib.sha256(self.settings.identity() + digest.digest()).hexdigest()
        layers = {layer.target.module: _numbers(layer, content, self.weights.name) for layer in self.layers}
        return Adapter(
            revision=revision,
            weights_sha256=weights_sha256,
            layers=layers,
            rank=max(layer.rank for layer in self.layers),
            scale=self.settings.stated_scale,
            num_skipped=self.num_skipped,
            nbytes=self.nbytes,
        )


def open_adapter(folder: Path, targets: Mapping[str, AdapterTarget]) -> AdapterHeader:
    """Check an adapter against a model by its headers; no numbers are read.

    Args:
        folder: with its weights and its settings.
        targets: the model's layers that adapters may change, by their modules.

    Raises:
        AdapterMissing: there is no such folder.
        AdapterRejected: a file is missing or spoilt, or something in it does not fit; by name.
    """
    files = find_files(folder)
    settings = read_settings(files.settings)
    with as_adapters():
        header = read_safetensors_header(files.weights)
    layers, num_skipped = match(header.tensors, settings, targets, files.weights.name)
    return AdapterHeader(files.weights, settings, header, tuple(layers), num_skipped)


def _read(path: Path, header: SafetensorsHeader) -> bytes:
    with as_adapters():
        content = read_bytes(path, header.file_bytes)
    length = int.from_bytes(content[:_LENGTH_BYTES], "little")
    raw = content[_LENGTH_BYTES : _LENGTH_BYTES + length]
    if len(content) != header.file_bytes or hashlib.sha256(raw).digest() != header.digest:
        raise AdapterRejected("has changed while it was read", file=path.name)
    return content


def _numbers(layer: MatchedLayer, content: bytes, file: str) -> LayerNumbers:
    return LayerNumbers(
        a=_matrix(layer.a, content, file),
        b=_matrix(layer.b, content, file),
        is_bfloat16=(layer.a.dtype == "BF16", layer.b.dtype == "BF16"),
        rank=layer.rank,
        scale=layer.scale,
        is_transposed=layer.is_transposed,
    )


def _matrix(tensor: StoredTensor, content: bytes, file: str) -> Numbers:
    dtype = np.dtype(_DTYPES[tensor.dtype])
    numbers = np.frombuffer(content, dtype, tensor.nbytes // dtype.itemsize, tensor.offset)
    is_finite = (numbers & _BF16_EXPONENT) != _BF16_EXPONENT if tensor.dtype == "BF16" else np.isfinite(numbers)
    if not is_finite.all():
        raise AdapterRejected("holds what is no number", file=file, key=tensor.name)
    return numbers.reshape(tensor.shape)
