"""The three layouts of a Whisper checkpoint under one set of names: those of MLX's layout.

`encoder.conv1`, `encoder.blocks.0.attn.query`, `….attn_ln`, `….mlp1`, `….mlp_ln`, `encoder.ln_post`,
`decoder.token_embedding`, `decoder.positional_embedding`, `decoder.blocks.0.cross_attn.key`, `decoder.ln`. Hugging
Face and CTranslate2 also store the encoder's positions, here `encoder.positional_embedding`, and keep convolutions as
[outputs, inputs, 3], which here are [outputs, 3, inputs]. CTranslate2 stacks query, key and value, and gives the key
a bias of zeros; weights of whole numbers (int8, int16) have a scale for each row, or one, by which they are divided.
Source: CTranslate2 4.8, `python/ctranslate2/specs/model_spec.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from models.checkpoint.errors import CheckpointCorrupt, CheckpointRejected
from models.checkpoint.quantization import AFFINE_GROUP_SIZES, LayerQuantization
from models.checkpoint.raw_numbers import read_raw_numbers
from models.checkpoint.tensors import IntegerPart, IntegerRows, StoredTensor, TensorInfo
from models.whisper.ctranslate2 import ModelFile

_SPECIFICATION = "WhisperSpec"
_CONV_AXES = (0, 2, 1)
# Numbers of CTranslate2's that its own runtime needs; Whisper's are always these.
_FIXED = {"pre_norm": 1, "scale_embeddings": 0, "start_from_zero_embedding": 0, "alibi": 0, "activation": 3}
# What the config says too, and what means nothing without alibi.
_DESCRIBED = frozenset(
    {"num_heads", "alignment_heads", "alignment_layer", "alibi_use_positive_positions", "scale_alibi"}
)
_SCALE = "/weight_scale"
_CODE_BITS = 8
_CODES_OF_A_WORD = 4

_HF_TOP = {
    "encoder.layer_norm": "encoder.ln_post",
    "encoder.embed_positions.weight": "encoder.positional_embedding",
    "decoder.embed_tokens": "decoder.token_embedding",
    "decoder.embed_positions.weight": "decoder.positional_embedding",
    "decoder.layer_norm": "decoder.ln",
}
_HF_BLOCK = {
    "self_attn.q_proj": "attn.query",
    "self_attn.k_proj": "attn.key",
    "self_attn.v_proj": "attn.value",
    "self_attn.out_proj": "attn.out",
    "self_attn_layer_norm": "attn_ln",
    "encoder_attn.q_proj": "cross_attn.query",
    "encoder_attn.k_proj": "cross_attn.key",
    "encoder_attn.v_proj": "cross_attn.value",
    "encoder_attn.out_proj": "cross_attn.out",
    "encoder_attn_layer_norm": "cross_attn_ln",
    "fc1": "mlp1",
    "fc2": "mlp2",
    "final_layer_norm": "mlp_ln",
}
_CT2_TOP = {
    "encoder/layer_norm": "encoder.ln_post",
    "encoder/position_encodings/encodings": "encoder.positional_embedding",
    "encoder/conv1": "encoder.conv1",
    "encoder/conv2": "encoder.conv2",
    "decoder/embeddings": "decoder.token_embedding",
    "decoder/position_encodings/encodings": "decoder.positional_embedding",
    "decoder/layer_norm": "decoder.ln",
}
# What a stacked layer holds, in order.
_CT2_BLOCK = {
    "self_attention/linear_0": ("attn.query", "attn.key", "attn.value"),
    "self_attention/linear_1": ("attn.out",),
    "self_attention/layer_norm": ("attn_ln",),
    "attention/linear_0": ("cross_attn.query",),
    "attention/linear_1": ("cross_attn.key", "cross_attn.value"),
    "attention/linear_2": ("cross_attn.out",),
    "attention/layer_norm": ("cross_attn_ln",),
    "ffn/linear_0": ("mlp1",),
    "ffn/linear_1": ("mlp2",),
    "ffn/layer_norm": ("mlp_ln",),
}
_SHARED = tuple((f"decoder/projection/{part}", f"decoder/embeddings/{part}") for part in ("weight", "weight_scale"))
_CT2_PARTS = {"weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}


def from_hugging_face(tensors: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    """Return the tensors of a transformers checkpoint by canonical name; a name that is not known stays.

    A stored head is left out: Whisper's is the embedding.
    """
    found: dict[str, TensorInfo] = {}
    for stored, info in tensors.items():
        if stored == "proj_out.weight":
            continue
        name = _hugging_face_name(stored.removeprefix("model."))
        found[name] = _with_axes(replace(info, name=name))
    return found


def from_ctranslate2(model: ModelFile) -> dict[str, TensorInfo]:
    """Return the tensors of a CTranslate2 model by canonical name.

    Raises:
        CheckpointRejected: a model that is not Whisper, or a key's bias that is not zero.
        CheckpointCorrupt: a variable that Whisper lacks, or whole numbers without their scales.
    """
    if model.specification != _SPECIFICATION:
        problem = f"holds a {model.specification}, not a {_SPECIFICATION}"
        raise CheckpointRejected(problem, file=model.path.name)
    for alias, name in model.aliases.items():
        if (alias, name) not in _SHARED:
            raise CheckpointRejected("shares weights that Whisper does not share", file=model.path.name, key=alias)
    found: dict[str, TensorInfo] = {}
    for variable in model.variables.values():
        if not _is_setting(variable, model):
            for info in _ctranslate2_tensors(variable, model):
                found[info.name] = info
    return found


def _hugging_face_name(stored: str) -> str:
    parts = stored.split(".")
    if len(parts) > 3 and parts[1] == "layers":
        inner, part = ".".join(parts[3:-1]), parts[-1]
        return ".".join([parts[0], "blocks", parts[2], _HF_BLOCK.get(inner, inner), part])
    if stored in _HF_TOP:
        return _HF_TOP[stored]
    module, _, part = stored.rpartition(".")
    return f"{_HF_TOP.get(module, module)}.{part}"


def _with_axes(info: TensorInfo) -> TensorInfo:
    if not info.name.endswith(("conv1.weight", "conv2.weight")) or len(info.shape) != len(_CONV_AXES):
        return info
    outputs, inputs, taps = info.shape
    return replace(info, shape=(outputs, taps, inputs), axes=_CONV_AXES)


def _is_setting(variable: StoredTensor, model: ModelFile) -> bool:
    """Whether this is a number for CTranslate2's own runtime; one that says other than Whisper's is refused."""
    if variable.name not in model.scalars:
        return False
    setting = variable.name.rpartition("/")[2]
    if setting not in _DESCRIBED and model.scalars[variable.name] != _FIXED.get(setting):
        raise CheckpointRejected("is set as no Whisper model is", file=model.path.name, key=variable.name)
    return True


def _ctranslate2_tensors(variable: StoredTensor, model: ModelFile) -> Iterator[TensorInfo]:
    if _is_scale(variable, model):
        return
    names = _ctranslate2_names(variable.name)
    rows = variable.shape[0] // max(1, len(names)) if variable.shape else 0
    if not names or rows * len(names) != (variable.shape or (0,))[0]:
        raise CheckpointCorrupt("is no part of a Whisper model", file=model.path.name, key=variable.name)
    nbytes = variable.nbytes // len(names)
    for place, name in enumerate(names):
        info = TensorInfo(
            name=name,
            stored_name=variable.name,
            file=model.path,
            dtype=variable.dtype,
            shape=(rows, *variable.shape[1:]),
            offset=variable.offset + place * nbytes,
            nbytes=nbytes,
            is_raw=True,
        )
        if name.endswith("attn.key.bias"):
            _check_zero(info)
        elif variable.dtype in ("I8", "I16"):
            yield from _of_integers(info, _scale_of(variable, model), place * rows)
        else:
            yield _with_axes(info)


def _is_scale(variable: StoredTensor, model: ModelFile) -> bool:
    """Whether this belongs to a weight of whole numbers."""
    weight = model.variables.get(variable.name.removesuffix("_scale"))
    return variable.name.endswith(_SCALE) and weight is not None and weight.dtype in ("I8", "I16")


def _scale_of(variable: StoredTensor, model: ModelFile) -> StoredTensor:
    scale = model.variables.get(f"{variable.name}_scale")
    if scale is None or scale.dtype != "F32" or scale.shape not in ((), variable.shape[:1]):
        raise CheckpointCorrupt("has no scale for each row", file=model.path.name, key=variable.name)
    return scale


def _of_integers(info: TensorInfo, scale: StoredTensor, first_row: int) -> Iterator[TensorInfo]:
    """Yield a tensor of floats, or codes, scales and biases as MLX packs 8 bits, where rows are cut into its groups."""
    has_many = bool(scale.shape)
    rows = IntegerRows(
        part=IntegerPart.WEIGHTS,
        dtype=info.dtype,
        shape=info.shape,
        scales_offset=scale.offset + (4 * first_row if has_many else 0),
        num_scales=info.shape[0] if has_many else 1,
    )
    group = next((size for size in sorted(AFFINE_GROUP_SIZES, reverse=True) if info.shape[-1] % size == 0), None)
    if info.dtype != "I8" or len(info.shape) != 2 or group is None or not has_many:
        plain = replace(info, dtype="F32", nbytes=4 * math.prod(info.shape), integers=rows)
        yield _with_axes(plain)
        return
    module = info.name.removesuffix(".weight")
    codes = info.shape[0], info.shape[1] // _CODES_OF_A_WORD
    yield replace(info, dtype="U32", shape=codes, integers=replace(rows, part=IntegerPart.CODES))
    groups = info.shape[0], info.shape[1] // group
    for name, part in (("scales", IntegerPart.STEPS), ("biases", IntegerPart.BIASES)):
        yield replace(
            info,
            name=f"{module}.{name}",
            dtype="F32",
            shape=groups,
            nbytes=4 * math.prod(groups),
            integers=replace(rows, part=part),
        )


def integer_layers(tensors: Mapping[str, TensorInfo]) -> dict[str, LayerQuantization]:
    """Return how each module is packed whose whole numbers are read as codes."""
    return {
        name.removesuffix(".scales"): LayerQuantization(_CODE_BITS, info.integers.shape[1] // info.shape[1])
        for name, info in tensors.items()
        if info.integers is not None and info.integers.part is IntegerPart.STEPS
    }


def _ctranslate2_names(stored: str) -> tuple[str, ...]:
    if stored in _CT2_TOP:
        return (_CT2_TOP[stored],)
    module, _, part = stored.rpartition("/")
    canonical_part = _CT2_PARTS.get(part)
    side, _, rest = module.partition("/")
    if canonical_part is None:
        return ()
    if module in _CT2_TOP:
        return (f"{_CT2_TOP[module]}.{canonical_part}",)
    layer, _, inner = rest.partition("/")
    number = layer.removeprefix("layer_")
    if not number.isdecimal() or side not in ("encoder", "decoder"):
        return ()
    return tuple(f"{side}.blocks.{number}.{name}.{canonical_part}" for name in _CT2_BLOCK.get(inner, ()))


def _check_zero(info: TensorInfo) -> None:
    if bool(read_raw_numbers(info).any()):
        problem = "gives keys a bias, which Whisper does not have"
        raise CheckpointRejected(problem, file=info.file.name, key=info.stored_name)
