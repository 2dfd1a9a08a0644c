"""Bringing an adapter's tensors together with the layers of a model, by their names and shapes alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from models.adapters.errors import AdapterRejected
from models.adapters.names import Half, Side, read_half
from models.adapters.settings import AdapterSettings
from models.adapters.target import AdapterTarget
from models.checkpoint.tensors import StoredTensor

_DTYPES = frozenset({"F32", "F16", "BF16"})
# What DoRA adds to a layer's matrices.
_MAGNITUDES = (".m", ".lora_magnitude_vector", ".lora_magnitude_vector.weight")
# What modules of routed experts have in their names.
_ROUTED = (".switch_mlp.", ".experts.")


@dataclass(frozen=True, slots=True)
class MatchedLayer:
    """One layer's two matrices, checked.

    Attributes:
        target: the layer.
        a: of what the layer reads.
        b: of what it gives.
        rank: between the two.
        scale: multiplies their product.
        is_transposed: whether they lie as PEFT has them, a [rank, inputs] and b [outputs, rank], and not as mlx-lm
            does, a [inputs, rank] and b [rank, outputs].
    """

    target: AdapterTarget
    a: StoredTensor
    b: StoredTensor
    rank: int
    scale: float
    is_transposed: bool


@dataclass(slots=True)
class _Pair:
    tensors: dict[Side, StoredTensor] = field(default_factory=dict["Side", StoredTensor])
    spelled_peft: set[Side] = field(default_factory=set["Side"])


def match(
    tensors: Mapping[str, StoredTensor],
    settings: AdapterSettings,
    targets: Mapping[str, AdapterTarget],
    file: str,
) -> tuple[list[MatchedLayer], int]:
    """Find for each of an adapter's tensors its layer.

    Args:
        tensors: by their names in the file.
        settings: of the adapter.
        targets: the model's layers, by their modules.
        file: base name of the file.

    Returns:
        The layers, and how many tensors were left out: those of layers that the settings do not name as targets.

    Raises:
        AdapterRejected: a half is missing, a shape, rank or dtype is wrong, nothing matches, or something does not that
            the settings do not leave out.
    """
    pairs: dict[str, _Pair] = {}
    num_skipped = 0
    for name, tensor in tensors.items():
        half = _half_of(name, file)
        if half.module not in targets or not settings.is_target(half.module):
            _check_skipped(name, half, settings, file)
            num_skipped += 1
            continue
        _join(pairs.setdefault(half.module, _Pair()), half, tensor, file)
    if not pairs:
        raise AdapterRejected("has no tensor for any layer of this model: it was made for another", file=file)
    return [_matched(targets[module], pair, settings, file) for module, pair in pairs.items()], num_skipped


def _half_of(name: str, file: str) -> Half:
    half = read_half(name)
    if half is not None:
        return half
    if name.endswith(_MAGNITUDES):
        raise AdapterRejected("is of DoRA, which is not run", file=file, key=name)
    raise AdapterRejected("is no half of a LoRA matrix", file=file, key=name)


def _check_skipped(name: str, half: Half, settings: AdapterSettings, file: str) -> None:
    """Refuse to leave out what the adapter was made with."""
    if settings.targets is None or settings.is_target(half.module):
        is_routed = any(part in half.module for part in _ROUTED)
        why = (
            "and routed experts take no adapters"
            if is_routed
            else "which is no layer of this model that adapters change"
        )
        problem = f"is for {half.module}, {why}"
        raise AdapterRejected(problem, file=file, key=name)


def _join(pair: _Pair, half: Half, tensor: StoredTensor, file: str) -> None:
    if half.side in pair.tensors:
        raise AdapterRejected(f"is there twice, as {pair.tensors[half.side].name} too", file=file, key=tensor.name)
    if tensor.dtype not in _DTYPES:
        raise AdapterRejected(f"is of {tensor.dtype} and not of floats", file=file, key=tensor.name)
    pair.tensors[half.side] = tensor
    if half.is_peft:
        pair.spelled_peft.add(half.side)


def _matched(target: AdapterTarget, pair: _Pair, settings: AdapterSettings, file: str) -> MatchedLayer:
    a, b = pair.tensors.get("a"), pair.tensors.get("b")
    if a is None or b is None:
        there, missing = (b, "lora_a") if a is None else (a, "lora_b")
        raise AdapterRejected(f"has no {missing} beside it", file=file, key=there.name if there else target.module)
    is_transposed = _is_transposed(target, a.shape, b.shape, is_spelled_peft=len(pair.spelled_peft) == 2)
    if is_transposed is None:
        raise AdapterRejected(_mismatch(target, a.shape, b.shape), file=file, key=target.module)
    rank = a.shape[0] if is_transposed else a.shape[1]
    stated = settings.rank_of(target.module)
    if stated is not None and rank != stated:
        raise AdapterRejected(f"has rank {rank}, and {settings.file} says {stated}", file=file, key=target.module)
    return MatchedLayer(target, a, b, rank, settings.scale_of(target.module, rank), is_transposed)


def _is_transposed(
    target: AdapterTarget, a: tuple[int, ...], b: tuple[int, ...], *, is_spelled_peft: bool
) -> bool | None:
    """Say how two matrices lie; None where they fit in neither way. Square ones fit in both: their names decide."""
    if len(a) != 2 or len(b) != 2 or 0 in a:
        return None
    is_mlx = a[0] == target.inputs and b == (a[1], target.outputs)
    is_peft = a[1] == target.inputs and b == (target.outputs, a[0])
    if is_mlx and is_peft:
        return is_spelled_peft
    return is_peft if is_mlx or is_peft else None


def _mismatch(target: AdapterTarget, a: tuple[int, ...], b: tuple[int, ...]) -> str:
    inputs, outputs = target.inputs, target.outputs
    return (
        f"lora_a {list(a)} and lora_b {list(b)} do not fit a layer of {inputs} inputs and {outputs} outputs, "
        f"which takes [{inputs}, rank] and [rank, {outputs}], or [rank, {inputs}] and [{outputs}, rank]"
    )
