"""What the weights of a checkpoint take in memory, from its headers alone; no MLX.

The rules are those of `models.checkpoint.weights`: packed codes stay as they are, other numbers become the compute
dtype where the arithmetic does not read them as stored.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from models.checkpoint.checkpoint import Checkpoint, TextCheckpoint
from models.checkpoint.expert_tensors import unnumbered
from models.checkpoint.names import is_expert_name
from models.checkpoint.tensors import TensorInfo

Device = Literal["cpu", "metal", "cuda"]
ITEM_BYTES: Mapping[str, int] = {"F16": 2, "BF16": 2, "F32": 4}
_WORDS: Mapping[str, str] = {"F16": "float16", "BF16": "bfloat16", "F32": "float32"}
_FLOATING = frozenset(ITEM_BYTES)
_TEXT_EMBEDDING = "model.embed_tokens"
# What stays float32 whatever the model computes in.
_WIDE = (".global_scale", ".A_log")
_OWN_MODULES = re.compile(
    r"model\.(layers|embed_tokens|norm|embed_tokens_per_layer|per_layer_model_projection|per_layer_projection_norm)\."
)
_SHARED_KEYS = re.compile(r"model\.layers\.(\d+)\.self_attn\.(k_proj|v_proj|k_norm)\.")


@dataclass(frozen=True, slots=True)
class Computation:
    """Where and with what a model computes.

    Attributes:
        device: MLX's default device.
        has_kernels: whether native kernels compute.
        is_reference: whether it is the reference path.
        dtype: of hidden states, and of keys and values that are not packed: F32, F16 or BF16.
    """

    device: Device
    has_kernels: bool
    is_reference: bool
    dtype: str

    @classmethod
    def of(
        cls,
        checkpoint: Checkpoint,
        device: Device,
        *,
        has_kernels: bool,
        is_reference: bool = False,
        module: str = _TEXT_EMBEDDING,
        default_dtype: str = "BF16",
    ) -> Computation:
        """Say how a checkpoint is computed with.

        Args:
            checkpoint: its headers.
            device: MLX's default device.
            has_kernels: whether this install has native kernels, and they are wanted.
            is_reference: whether it is the reference path.
            module: the one whose dtype the model computes in where the device is not the CPU.
            default_dtype: where that is of no floating dtype.
        """
        dtype = "F32"
        if device != "cpu":
            stored = checkpoint.tensors.get(f"{module}.scales") or checkpoint.tensors.get(f"{module}.weight")
            dtype = stored.dtype if stored and stored.dtype in _FLOATING else default_dtype
        return cls(device, has_kernels and device == "cpu" and not is_reference, is_reference, dtype)

    def read_as(self, info: TensorInfo, *, is_weight: bool) -> str:
        """Return the dtype, as safetensors has it, that experts are computed with; `is_weight` or not is the same."""
        del is_weight
        return info.dtype if self.has_kernels or info.dtype not in _FLOATING else self.dtype

    @property
    def item_bytes(self) -> int:
        """Bytes of a number in the compute dtype."""
        return ITEM_BYTES[self.dtype]

    @property
    def dtype_word(self) -> str:
        """The compute dtype as MLX calls it."""
        return _WORDS[self.dtype]


@dataclass(frozen=True, slots=True)
class WeightSizes:
    """Bytes in memory.

    Attributes:
        resident_bytes: of all weights that every token needs.
        experts_bytes: of routed experts, of which a token needs a few.
        converted_experts_bytes: of these, what is not computed with as it is stored, or is stored in no one dtype.
        largest_expanded_bytes: of the largest packed matrix, were it expanded into the compute dtype.
    """

    resident_bytes: int
    experts_bytes: int
    converted_experts_bytes: int
    largest_expanded_bytes: int


def text_weight_sizes(checkpoint: TextCheckpoint, computation: Computation) -> WeightSizes:
    """Return what the weights of a text model take, those of a file's other models left out."""
    text = checkpoint.text
    is_gemma4 = text.model_type == "gemma4_text"
    num_own = text.num_hidden_layers - (text.num_kv_shared_layers if is_gemma4 else 0)

    def is_read(name: str) -> bool:
        if name.startswith("lm_head."):
            return not text.tie_word_embeddings
        shared = _SHARED_KEYS.match(name)
        return _OWN_MODULES.match(name) is not None and (shared is None or int(shared[1]) < num_own)

    return weight_sizes(checkpoint, computation, is_read)


def weight_sizes(
    checkpoint: Checkpoint, computation: Computation, is_read: Callable[[str], bool] = lambda _: True
) -> WeightSizes:
    """Return what tensors take.

    Args:
        checkpoint: its headers.
        computation: what computes with them.
        is_read: tells by its canonical name whether the model reads a tensor.
    """
    resident_bytes = experts_bytes = converted_bytes = expanded_bytes = 0
    mixed = _mixed_stacks(checkpoint.tensors)
    for name, info in checkpoint.tensors.items():
        if not is_read(name):
            continue
        is_as_stored = _is_read_as_stored(checkpoint, info, computation) and unnumbered(name) not in mixed
        num_bytes = info.nbytes if is_as_stored else _converted_bytes(info, computation)
        if is_expert_name(name):
            experts_bytes += num_bytes
            converted_bytes += 0 if is_as_stored else num_bytes
        else:
            resident_bytes += num_bytes
            expanded_bytes = max(expanded_bytes, _expanded_bytes(checkpoint, info, computation))
    return WeightSizes(resident_bytes, experts_bytes, converted_bytes, expanded_bytes)


def tensor_bytes(checkpoint: Checkpoint, info: TensorInfo, computation: Computation) -> int:
    """Return what a tensor takes as it is computed with."""
    if _is_read_as_stored(checkpoint, info, computation):
        return info.nbytes
    return _converted_bytes(info, computation)


def _converted_bytes(info: TensorInfo, computation: Computation) -> int:
    is_wide = info.name.endswith(_WIDE)
    return math.prod(info.shape) * (ITEM_BYTES["F32"] if is_wide else computation.item_bytes)


def _mixed_stacks(tensors: Mapping[str, TensorInfo]) -> frozenset[str]:
    """Return the names, `unnumbered`, of stacks whose tensors have several dtypes: no pack puts them together."""
    dtypes: dict[str, set[str]] = {}
    for name, info in tensors.items():
        dtypes.setdefault(unnumbered(name), set()).add(info.dtype)
    return frozenset(stack for stack, found in dtypes.items() if len(found) > 1)


def _is_read_as_stored(checkpoint: Checkpoint, info: TensorInfo, computation: Computation) -> bool:
    return info.dtype not in _FLOATING or _stays_as_stored(checkpoint, info, computation)


def _stays_as_stored(checkpoint: Checkpoint, info: TensorInfo, computation: Computation) -> bool:
    """Tell whether the arithmetic reads a floating tensor as stored: native kernels read matrices and scales so."""
    if not computation.has_kernels:
        return False
    module, _, part = info.name.rpartition(".")
    if part in ("scales", "biases"):
        scales, biases = (checkpoint.tensors.get(f"{module}.{each}") for each in ("scales", "biases"))
        return scales is not None and biases is not None and scales.dtype == biases.dtype
    is_stack = is_expert_name(info.name) and len(info.shape) == 3
    return is_stack or (part == "weight" and len(info.shape) == 2)


def _expanded_bytes(checkpoint: Checkpoint, info: TensorInfo, computation: Computation) -> int:
    """Return what a packed matrix would take expanded; 0 for any other tensor."""
    module, _, part = info.name.rpartition(".")
    scales = checkpoint.tensors.get(f"{module}.scales")
    if part != "weight" or scales is None:
        return 0
    stated = checkpoint.layer_quantization(module)
    return math.prod(scales.shape) * stated.group_size * computation.item_bytes if stated else 0
