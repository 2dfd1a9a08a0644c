"""Writes tiny random Whisper checkpoints in all three layouts, from one set of weights for a seed.

The sizes are small, the vocabulary is whole: its words are those of one to four letters and digits.
"""

import functools
import itertools
import json
import string
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from models.checkpoint.decoder import byte_characters

SIZES: Mapping[str, int] = {
    "n_mels": 80,
    "n_audio_ctx": 20,
    "n_audio_state": 64,
    "n_audio_head": 4,
    "n_audio_layer": 2,
    "n_vocab": 51_865,
    "n_text_ctx": 32,
    "n_text_state": 64,
    "n_text_head": 4,
    "n_text_layer": 2,
}
ALIGNMENT_HEADS = [[0, 1], [1, 3]]
_LETTERS = string.ascii_lowercase + string.digits
_HF_BLOCK = {
    "attn.query": "self_attn.q_proj",
    "attn.key": "self_attn.k_proj",
    "attn.value": "self_attn.v_proj",
    "attn.out": "self_attn.out_proj",
    "attn_ln": "self_attn_layer_norm",
    "cross_attn.query": "encoder_attn.q_proj",
    "cross_attn.key": "encoder_attn.k_proj",
    "cross_attn.value": "encoder_attn.v_proj",
    "cross_attn.out": "encoder_attn.out_proj",
    "cross_attn_ln": "encoder_attn_layer_norm",
    "mlp1": "fc1",
    "mlp2": "fc2",
    "mlp_ln": "final_layer_norm",
}
_HF_TOP = {
    "encoder.ln_post": "encoder.layer_norm",
    "decoder.token_embedding": "decoder.embed_tokens",
    "decoder.ln": "decoder.layer_norm",
}
_CT2_BLOCK = {
    "attn.out": "self_attention/linear_1",
    "attn_ln": "self_attention/layer_norm",
    "cross_attn.query": "attention/linear_0",
    "cross_attn.out": "attention/linear_2",
    "cross_attn_ln": "attention/layer_norm",
    "mlp1": "ffn/linear_0",
    "mlp2": "ffn/linear_1",
    "mlp_ln": "ffn/layer_norm",
}
_CT2_DTYPES = {"float32": 0, "int8": 1, "int16": 2, "float16": 4}


def write_mlx(
    folder: Path,
    *,
    sizes: Mapping[str, int] | None = None,
    seed: int = 0,
    dtype: mx.Dtype = mx.float32,
    quantization: Mapping[str, int] | None = None,
) -> Path:
    """Write MLX's layout: weights.safetensors, with the alignment heads; quantized where `quantization` says how."""
    full = {**SIZES, **(sizes or {})}
    tensors = {name: array.astype(dtype) for name, array in random_weights(full, seed).items()}
    if quantization:
        for name in [name for name in tensors if _is_matrix(name)]:
            module = name.removesuffix(".weight")
            codes, scales, biases = mx.quantize(tensors[name], quantization["group_size"], quantization["bits"])
            tensors |= {name: codes, f"{module}.scales": scales, f"{module}.biases": biases}
    config: dict[str, Any] = {"model_type": "whisper", **full}
    if quantization:
        config["quantization"] = dict(quantization)
    _start(folder, config, full["n_vocab"])
    tensors["alignment_heads"] = mx.array(ALIGNMENT_HEADS)
    mx.save_safetensors(str(folder / "weights.safetensors"), tensors)
    return folder


def write_hugging_face(
    folder: Path, *, sizes: Mapping[str, int] | None = None, seed: int = 0, dtype: mx.Dtype = mx.float32
) -> Path:
    """Write transformers' layout: model.safetensors, generation_config.json."""
    full = {**SIZES, **(sizes or {})}
    tensors = {
        _hugging_face_name(name): _torch_layout(name, array).astype(dtype)
        for name, array in random_weights(full, seed).items()
    }
    tensors["model.encoder.embed_positions.weight"] = mx.array(waves(full)).astype(dtype)
    config = {
        "model_type": "whisper",
        "architectures": ["WhisperForConditionalGeneration"],
        "num_mel_bins": full["n_mels"],
        "max_source_positions": full["n_audio_ctx"],
        "d_model": full["n_audio_state"],
        "encoder_attention_heads": full["n_audio_head"],
        "encoder_layers": full["n_audio_layer"],
        "vocab_size": full["n_vocab"],
        "max_target_positions": full["n_text_ctx"],
        "decoder_attention_heads": full["n_text_head"],
        "decoder_layers": full["n_text_layer"],
        "eos_token_id": 50_257,
    }
    _start(folder, config, full["n_vocab"])
    (folder / "generation_config.json").write_text(json.dumps({"alignment_heads": ALIGNMENT_HEADS}))
    mx.save_safetensors(str(folder / "model.safetensors"), tensors)
    return folder


def write_ctranslate2(
    folder: Path,
    *,
    sizes: Mapping[str, int] | None = None,
    seed: int = 0,
    dtype: str = "float32",
    changed: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """Write CTranslate2's layout: model.bin; `changed` takes the place of variables, or joins them.

    Weights are in whole numbers where `dtype` starts with int8 or int16; what stands behind that is the rest's.
    """
    full = {**SIZES, **(sizes or {})}
    integers, _, rest = dtype.rpartition("_") if "_" in dtype else (dtype, "", "float32")
    floats = dtype if integers == dtype and not dtype.startswith("int") else rest
    variables: dict[str, np.ndarray] = {}
    for name, array in _ctranslate2_variables(full, seed).items():
        if integers.startswith("int") and name.endswith("weight"):
            variables[name], variables[f"{name}_scale"] = whole_numbers(array, integers)
        else:
            variables[name] = array.astype(floats) if array.dtype == np.float32 else array
    variables |= changed or {}
    config = {"alignment_heads": ALIGNMENT_HEADS, "suppress_ids": [], "suppress_ids_begin": [], "lang_ids": []}
    _start(folder, config, full["n_vocab"])
    (folder / "model.bin").write_bytes(ctranslate2_bytes(variables))
    return folder


def whole_numbers(weights: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Return weights as CTranslate2 stores them in int8, a scale for each row, or in int16, one for all."""
    if dtype == "int16":
        scale = np.float32(2**10 / np.abs(weights).max())
        return np.rint(weights * scale).astype(np.int16), np.array(scale)
    most = np.abs(weights).max(axis=tuple(range(1, weights.ndim)))
    scales = (127 / np.where(most == 0, 127, most)).astype(np.float32)
    rows = scales.reshape(-1, *(1 for _ in weights.shape[1:]))
    return np.rint(weights * rows).astype(np.int8), scales


def ctranslate2_bytes(variables: Mapping[str, np.ndarray], specification: str = "WhisperSpec") -> bytes:
    """Return a model.bin of these variables, whose head is another name for the embedding."""
    parts = [struct.pack("<I", 6), _text(specification), struct.pack("<II", 3, len(variables))]
    for name, array in sorted(variables.items()):
        parts.append(_text(name) + struct.pack("<B", array.ndim) + struct.pack(f"<{array.ndim}I", *array.shape))
        parts.append(struct.pack("<BI", _CT2_DTYPES[str(array.dtype)], array.nbytes) + array.tobytes())
    parts.append(struct.pack("<I", 1) + _text("decoder/projection/weight") + _text("decoder/embeddings/weight"))
    return b"".join(parts)


def random_weights(sizes: Mapping[str, int], seed: int) -> dict[str, mx.array]:
    """Return float32 tensors by canonical name, their values exact in float16."""
    width, draws = sizes["n_audio_state"], np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {
        "encoder.conv1.weight": (width, 3, sizes["n_mels"]),
        "encoder.conv1.bias": (width,),
        "encoder.conv2.weight": (width, 3, width),
        "encoder.conv2.bias": (width,),
        "decoder.token_embedding.weight": (sizes["n_vocab"], width),
        "decoder.positional_embedding": (sizes["n_text_ctx"], width),
    }
    for side, layers in (("encoder", sizes["n_audio_layer"]), ("decoder", sizes["n_text_layer"])):
        for layer in range(layers):
            shapes |= _block_shapes(f"{side}.blocks.{layer}", width, is_decoder=side == "decoder")
    for norm in ("encoder.ln_post", "decoder.ln"):
        shapes |= {f"{norm}.weight": (width,), f"{norm}.bias": (width,)}
    found: dict[str, mx.array] = {}
    for name, shape in shapes.items():
        scale = 0.02 if name.startswith("decoder.token") else 0.5 / np.sqrt(shape[-1]) if len(shape) > 1 else 0.1
        numbers = draws.normal(0, scale, shape) + (1 if "ln" in name and name.endswith("weight") else 0)
        found[name] = mx.array(numbers.astype(np.float16).astype(np.float32))
    return found


def waves(sizes: Mapping[str, int]) -> np.ndarray:
    """Return the encoder's positions, float32 [C, E]."""
    half = sizes["n_audio_state"] // 2
    turns = np.exp(-np.log(10_000) / (half - 1) * np.arange(half))
    angles = np.arange(sizes["n_audio_ctx"])[:, None] * turns
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def words(num_texts: int) -> list[str]:
    """Return texts by id: all bytes, then words of letters, each made of older ones."""
    characters = {byte: character for character, byte in byte_characters().items()}
    long = ("".join(letters) for length in itertools.count(2) for letters in itertools.product(_LETTERS, repeat=length))
    return [*(characters[byte] for byte in range(256)), *itertools.islice(long, num_texts - 256)]


def _block_shapes(block: str, width: int, *, is_decoder: bool) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for attention in ("attn", "cross_attn") if is_decoder else ("attn",):
        for part in ("query", "key", "value", "out"):
            shapes[f"{block}.{attention}.{part}.weight"] = (width, width)
            if part != "key":
                shapes[f"{block}.{attention}.{part}.bias"] = (width,)
        shapes |= {f"{block}.{attention}_ln.weight": (width,), f"{block}.{attention}_ln.bias": (width,)}
    shapes |= {f"{block}.mlp1.weight": (4 * width, width), f"{block}.mlp1.bias": (4 * width,)}
    shapes |= {f"{block}.mlp2.weight": (width, 4 * width), f"{block}.mlp2.bias": (width,)}
    shapes |= {f"{block}.mlp_ln.weight": (width,), f"{block}.mlp_ln.bias": (width,)}
    return shapes


def _is_matrix(name: str) -> bool:
    return name.endswith(".weight") and "conv" not in name and "ln" not in name


def _torch_layout(name: str, array: mx.array) -> mx.array:
    return mx.contiguous(mx.transpose(array, (0, 2, 1))) if "conv" in name and array.ndim == 3 else array


def _hugging_face_name(name: str) -> str:
    if name == "decoder.positional_embedding":
        return "model.decoder.embed_positions.weight"
    module, _, part = name.rpartition(".")
    side, _, rest = module.partition(".")
    if rest.startswith("blocks."):
        _, layer, inner = rest.split(".", 2)
        return f"model.{side}.layers.{layer}.{_HF_BLOCK[inner]}.{part}"
    return f"model.{_HF_TOP.get(module, module)}.{part}"


def _ctranslate2_variables(sizes: Mapping[str, int], seed: int) -> dict[str, np.ndarray]:
    weights = random_weights(sizes, seed)
    plain = {name: np.array(_torch_layout(name, array)) for name, array in weights.items()}
    found: dict[str, np.ndarray] = {
        "encoder/position_encodings/encodings": waves(sizes),
        "decoder/position_encodings/encodings": plain.pop("decoder.positional_embedding"),
        "decoder/embeddings/weight": plain.pop("decoder.token_embedding.weight"),
        "encoder/num_heads": np.array(sizes["n_audio_head"], np.int16),
        "decoder/num_heads": np.array(sizes["n_text_head"], np.int16),
        "decoder/pre_norm": np.array(1, np.int8),
        "decoder/activation": np.array(3, np.int8),
        "decoder/alignment_layer": np.array(-1, np.int16),
    }
    zeros = np.zeros(sizes["n_audio_state"], np.float32)
    for name, array in plain.items():
        module, _, part = name.rpartition(".")
        side, _, rest = module.partition(".")
        word = {"weight": "gamma", "bias": "beta"}[part] if "ln" in rest else part
        if not rest.startswith("blocks."):
            found[f"{side}/{'layer_norm' if 'ln' in rest else rest}/{word}"] = array
            continue
        _, layer, inner = rest.split(".", 2)
        if inner in _CT2_BLOCK:
            found[f"{side}/layer_{layer}/{_CT2_BLOCK[inner]}/{word}"] = array
        elif inner.endswith("value"):
            block, is_cross = f"{side}.blocks.{layer}.{inner.partition('.')[0]}", inner.startswith("cross")
            key = plain[f"{block}.key.weight"] if part == "weight" else zeros
            stack = [key, array] if is_cross else [plain[f"{block}.query.{part}"], key, array]
            place = "attention/linear_1" if is_cross else "self_attention/linear_0"
            found[f"{side}/layer_{layer}/{place}/{part}"] = np.concatenate(stack)
    return found


def _text(text: str) -> bytes:
    return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"


def _start(folder: Path, config: Mapping[str, Any], n_vocab: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(tokenizer_json(50_257 if n_vocab >= 51_865 else 50_256))


@functools.cache
def tokenizer_json(num_texts: int) -> str:
    """Return a byte-level tokenizer of so many texts and the end of text."""
    texts = words(num_texts)
    vocab = {text: token_id for token_id, text in enumerate(texts)}
    tokenizer = Tokenizer(models.BPE(vocab, [(text[:-1], text[-1]) for text in texts[256:]]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken("<|endoftext|>", special=True, normalized=False)])
    return tokenizer.to_str()
