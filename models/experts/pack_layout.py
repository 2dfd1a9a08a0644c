"""What a pack of a checkpoint holds: a tensor for each of its experts' tensors, stacked as they are computed with.

Tensors of MLX's own layout, `….switch_mlp.gate_proj.weight` and their scales and biases, stand in a pack as they are.
Those of the layouts that Hugging Face has are put together, since a stack that is not stored as one cannot be mapped:

* **fused**: `….experts.gate_up_proj` [X, 2 * I, E] becomes the two stacks [X, I, E] that it is made of;
* **each**: `….experts.7.gate_proj.weight` [I, E] of all experts become one stack [X, I, E].
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from models.checkpoint.names import is_expert_name
from models.checkpoint.tensors import TensorInfo

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_EACH = re.compile(r"(?P<outer>.+\.experts)\.(?P<expert>\d+)\.(?P<kind>gate_proj|up_proj|down_proj)\.weight")
_FUSED = re.compile(r"(?P<outer>.+\.experts)\.(?P<kind>gate_up_proj|down_proj)")
_FLOATING = frozenset({"F32", "BF16", "F16"})


@dataclass(frozen=True, slots=True)
class Segment:
    """Bytes of a weight file; `key` is the stored name of the tensor that they are of."""

    file: Path
    offset: int
    nbytes: int
    key: str


@dataclass(frozen=True, slots=True)
class PackTensor:
    """One tensor of a pack and what it is made of.

    Attributes:
        name: canonical name.
        dtype: safetensors word.
        shape: outermost dimension first.
        parts: canonical names of the checkpoint's tensors that it stands for, whole or in part.
        segments: its bytes, one behind the other.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    parts: tuple[str, ...]
    segments: tuple[Segment, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all segments."""
        return sum(segment.nbytes for segment in self.segments)


def pack_tensors(tensors: Mapping[str, TensorInfo]) -> list[PackTensor]:
    """Return what a pack of a checkpoint holds, by layer and then by name; numbers in names count by their value."""
    experts = {name: info for name, info in tensors.items() if is_expert_name(name)}
    packed = [*_stacked(experts), *_split(experts)]
    taken = {part for tensor in packed for part in tensor.parts}
    packed += [_whole(info) for name, info in experts.items() if name not in taken]
    return sorted(packed, key=lambda tensor: _order(tensor.name))


def _whole(info: TensorInfo) -> PackTensor:
    return PackTensor(info.name, info.dtype, info.stored_shape, (info.name,), (_segment(info, 0, info.nbytes),))


def _stacked(experts: Mapping[str, TensorInfo]) -> Iterable[PackTensor]:
    """Put together the tensors that each expert has of its own, where all have one and all are alike."""
    groups: dict[str, dict[int, TensorInfo]] = {}
    for name, info in experts.items():
        if (found := _EACH.fullmatch(name)) and info.dtype in _FLOATING:
            stack = f"{_stack_module(found['outer'])}.{found['kind']}.weight"
            groups.setdefault(stack, {})[int(found["expert"])] = info
    for stack, group in groups.items():
        infos = [group[expert] for expert in sorted(group)]
        is_whole = sorted(group) == list(range(len(group))) and len({(info.dtype, info.shape) for info in infos}) == 1
        if is_whole and stack not in experts:
            segments = tuple(_segment(info, 0, info.nbytes) for info in infos)
            names = tuple(info.name for info in infos)
            yield PackTensor(stack, infos[0].dtype, (len(infos), *infos[0].shape), names, segments)


def _split(experts: Mapping[str, TensorInfo]) -> Iterable[PackTensor]:
    """Take apart the tensors that are two stacks in one, and give those beside them their canonical name."""
    for name, info in experts.items():
        found = _FUSED.fullmatch(name)
        if not found or info.dtype not in _FLOATING or len(info.shape) != 3:
            continue
        module = _stack_module(found["outer"])
        if found["kind"] == "down_proj":
            yield PackTensor(f"{module}.down_proj.weight", info.dtype, info.shape, (name,), _whole(info).segments)
            continue
        num_experts, rows, columns = info.shape
        half = info.nbytes // max(1, 2 * num_experts)
        for index, kind in enumerate(("gate_proj", "up_proj") if rows % 2 == 0 else ()):
            segments = tuple(_segment(info, (2 * expert + index) * half, half) for expert in range(num_experts))
            shape = (num_experts, rows // 2, columns)
            yield PackTensor(f"{module}.{kind}.weight", info.dtype, shape, (name,), segments)


def _stack_module(outer: str) -> str:
    """Return what holds the stacks, given what holds the experts in another layout."""
    parent = outer.removesuffix(".experts")
    return f"{parent}.switch_mlp" if parent.endswith(".mlp") else f"{outer}.switch_glu"


def _segment(info: TensorInfo, start: int, nbytes: int) -> Segment:
    return Segment(info.file, info.offset + start, nbytes, info.stored_name)


def _order(name: str) -> tuple[int, list[tuple[int, str]]]:
    layer = _LAYER.search(name)
    parts = [(int(part), "") if part.isdecimal() else (-1, part) for part in name.split(".")]
    return int(layer[1]) if layer else -1, parts
