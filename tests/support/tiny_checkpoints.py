"""Writes tiny random checkpoints without MLX: a Hugging Face folder, and a GGUF file with its own writer.

Everything follows a fixed seed. Tensors are NumPy arrays in float32 or float16; packed ones are written by whoever can
make them, as plain arrays under MLX's names (`….weight`, `….scales`, `….biases`).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

Style = Literal["byte_level", "sentencepiece"]

SPECIAL_TOKENS = ("<|begin|>", "<|end|>", "<|turn|>")
MERGES = (("t", "h"), ("th", "e"), ("i", "n"), ("a", "n"), ("Ġ", "the"), ("e", "r"), ("o", "n"), ("Ġ", "a"))
CHAT_TEMPLATE = (
    "{% for message in messages %}<|turn|>{{ message.role }}\n{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)
GGUF_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 8}
_GGUF_ALIGNMENT = 32


def llama_config(**changes: Any) -> dict[str, Any]:
    """Return the config of a tiny Llama; a change to None removes the key."""
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "vocab_size": byte_level_tokenizer().get_vocab_size(),
        "max_position_embeddings": 512,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 264,
        "eos_token_id": 265,
    }
    return {key: value for key, value in {**config, **changes}.items() if value is not None}


def llama_tensors(config: Mapping[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """Return random float32 tensors for a Llama of this config, by canonical name."""
    rng = np.random.default_rng(seed)
    width, inner = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim", width // config["num_attention_heads"])
    queries = head * config["num_attention_heads"]
    keys = head * config.get("num_key_value_heads", config["num_attention_heads"])
    layer = {
        "input_layernorm": (width,),
        "post_attention_layernorm": (width,),
        "self_attn.q_proj": (queries, width),
        "self_attn.k_proj": (keys, width),
        "self_attn.v_proj": (keys, width),
        "self_attn.o_proj": (width, queries),
        "mlp.gate_proj": (inner, width),
        "mlp.up_proj": (inner, width),
        "mlp.down_proj": (width, inner),
    }
    shapes = {"model.embed_tokens": (config["vocab_size"], width), "model.norm": (width,)}
    for index in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    if not config.get("tie_word_embeddings"):
        shapes["lm_head"] = (config["vocab_size"], width)
    return {f"{name}.weight": _random(rng, shape) for name, shape in shapes.items()}


def write_folder(
    path: Path,
    config: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
    *,
    tokenizer: Style | None = "byte_level",
    tokenizer_config: Mapping[str, Any] | None = None,
    generation_config: Mapping[str, Any] | None = None,
    chat_template: str | None = CHAT_TEMPLATE,
    shards: int = 1,
) -> Path:
    """Write a checkpoint in the layout of Hugging Face and return its folder.

    Args:
        path: folder to make.
        config: config.json; a tiny Llama's by default.
        tensors: by stored name; random ones for `config` by default.
        tokenizer: which tokenizer.json to write; None for none.
        tokenizer_config: added to what tokenizer_config.json says by default.
        generation_config: generation_config.json; no such file by default.
        chat_template: chat_template.jinja; None for no such file.
        shards: number of files; more than one come with an index.
    """
    path.mkdir(parents=True)
    config = llama_config() if config is None else dict(config)
    tensors = llama_tensors(config) if tensors is None else dict(tensors)
    (path / "config.json").write_text(json.dumps(config))
    _write_tensors(path, tensors, shards)
    if tokenizer is not None:
        raw = byte_level_tokenizer() if tokenizer == "byte_level" else sentencepiece_tokenizer()
        raw.save(str(path / "tokenizer.json"))
    texts = {"bos_token": SPECIAL_TOKENS[0], "eos_token": SPECIAL_TOKENS[1], **(tokenizer_config or {})}
    (path / "tokenizer_config.json").write_text(json.dumps(texts))
    if generation_config is not None:
        (path / "generation_config.json").write_text(json.dumps(generation_config))
    if chat_template is not None:
        (path / "chat_template.jinja").write_text(chat_template)
    return path


def byte_level_tokenizer() -> Tokenizer:
    """Return a byte-level BPE tokenizer: 256 bytes, a few merges, three special tokens."""
    vocab = {character: index for index, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    for left, right in MERGES:
        vocab[left + right] = len(vocab)
    raw = Tokenizer(models.BPE(vocab, list(MERGES)))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return raw


def sentencepiece_tokenizer() -> Tokenizer:
    """Return a tokenizer in the style of Llama 2: `▁` for a space, bytes for what has no token, one space in front."""
    tokens = ["<unk>", *SPECIAL_TOKENS, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdefghinorstéü世"]
    vocab = {token: index for index, token in enumerate(tokens)}
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("i", "n"), ("▁", "a")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    raw = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    raw.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    raw.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in ("<unk>", *SPECIAL_TOKENS)])
    return raw


def word_level_tokenizer() -> Tokenizer:
    """Return a tokenizer whose decoder is of no kind that a stream can be decoded with."""
    raw = Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s"), "removed")
    raw.decoder = decoders.WordPiece()
    return raw


def gguf_metadata(config: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """Return the metadata of a tiny Llama with the byte-level tokenizer; a change to None removes the key.

    Keys of `changes` have `__` for each dot: `tokenizer__ggml__pre="gpt-2"`.
    """
    raw = byte_level_tokenizer()
    tokens = [raw.id_to_token(index) for index in range(raw.get_vocab_size())]
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": config["num_hidden_layers"],
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "llama.rope.freq_base": config["rope_theta"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([3 if token in SPECIAL_TOKENS else 1 for token in tokens], np.int32),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in MERGES],
        "tokenizer.ggml.bos_token_id": tokens.index(SPECIAL_TOKENS[0]),
        "tokenizer.ggml.eos_token_id": tokens.index(SPECIAL_TOKENS[1]),
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }
    metadata |= {key.replace("__", "."): value for key, value in changes.items()}
    return {key: value for key, value in metadata.items() if value is not None}


def write_llama_gguf(
    path: Path,
    config: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
    *,
    kind: str = "Q4_1",
    embedding_kind: str = "Q8_0",
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """Write a Llama as llama.cpp's converter does: its names, and q and k rows permuted.

    Args:
        path: file to write.
        config: of the Llama; a tiny one's by default.
        tensors: by canonical name; random ones for `config` by default.
        kind: type of the linear layers' weights.
        embedding_kind: type of the embedding and of a separate head.
        metadata: all metadata; that of `config` by default.
    """
    config = llama_config() if config is None else config
    tensors = llama_tensors(config) if tensors is None else tensors
    stored: dict[str, tuple[str, np.ndarray]] = {}
    for name, tensor in tensors.items():
        rows = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
        heads = next((count for part, count in rows.items() if part in name), 0)
        outer = "embed_tokens" in name or "lm_head" in name
        type_word = "F32" if tensor.ndim == 1 else embedding_kind if outer else kind
        stored[gguf_name(name)] = (type_word, permuted(tensor, heads) if heads else tensor)
    return write_gguf(path, gguf_metadata(config) if metadata is None else metadata, stored)


def write_gguf(
    path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, tuple[str, np.ndarray]], *, version: int = 3
) -> Path:
    """Write a GGUF file: metadata, then tensors as (type word, float values), each packed as its type says."""
    alignment = metadata.get("general.alignment", _GGUF_ALIGNMENT)
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for key, value in metadata.items():
        head += _string(key) + _typed(value)
    data = b""
    for name, (kind, values) in tensors.items():
        dimensions = values.shape[::-1]
        head += _string(name) + struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
        head += struct.pack("<IQ", GGUF_TYPES[kind], len(data))
        data += _padded(pack_blocks(values, kind), alignment)
    path.write_bytes(_padded(head, alignment) + data)
    return path


def permuted(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Return q or k rows as GGUF stores them: in each head, row i of the first half before row i of the second."""
    num_rows, *rest = rows.shape
    halves = rows.reshape(num_heads, 2, num_rows // num_heads // 2, *rest)
    return halves.swapaxes(1, 2).reshape(rows.shape)


def gguf_name(name: str) -> str:
    """Return the name that GGUF has for a canonical one."""
    names = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "model.layers": "blk",
        "post_attention_layernorm": "ffn_norm",
        "input_layernorm": "attn_norm",
        "self_attn.o_proj": "attn_output",
        "self_attn.": "attn_",
        "mlp.": "ffn_",
        "_proj": "",
    }
    for canonical, stored in names.items():
        name = name.replace(canonical, stored)
    return name


def pack_blocks(values: np.ndarray, kind: str) -> bytes:
    """Pack numbers as GGUF type `kind` does: blocks of 32 of a row share a scale."""
    if kind in ("F32", "F16"):
        return values.astype("<f4" if kind == "F32" else "<f2").tobytes()
    blocks = values.astype(np.float32).reshape(-1, 32)
    low, high = blocks.min(axis=1), blocks.max(axis=1)
    largest = np.maximum(np.abs(low), np.abs(high))
    if kind == "Q8_0":
        scale = (largest / 127).astype("<f2")
        codes = np.round(blocks / _divisor(scale)).clip(-127, 127).astype(np.int8)
        parts = [scale[:, None].view(np.uint8), codes.view(np.uint8)]
    else:
        scale = (largest / 8 if kind == "Q4_0" else (high - low) / 15).astype("<f2")
        start = (-8 * scale.astype(np.float32) if kind == "Q4_0" else low).astype("<f2")
        codes = np.round((blocks - start.astype(np.float32)[:, None]) / _divisor(scale)).clip(0, 15).astype(np.uint8)
        nibbles = codes[:, :16] | codes[:, 16:] << 4
        starts = [] if kind == "Q4_0" else [start[:, None].view(np.uint8)]
        parts = [scale[:, None].view(np.uint8), *starts, nibbles]
    return np.concatenate(parts, axis=1).tobytes()


def _divisor(scale: np.ndarray) -> np.ndarray:
    wide = scale.astype(np.float32)
    return np.where(wide == 0, 1, wide)[:, None]


def _random(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    values = rng.standard_normal(shape, dtype=np.float32)
    return 1 + 0.1 * values if len(shape) == 1 else values / np.sqrt(np.float32(shape[-1]))


def _write_tensors(path: Path, tensors: Mapping[str, np.ndarray], shards: int) -> None:
    if shards == 1:
        save_file(dict(tensors), path / "model.safetensors", {"format": "mlx"})
        return
    files = [f"model-{index + 1:05}-of-{shards:05}.safetensors" for index in range(shards)]
    weight_map = {name: files[index % shards] for index, name in enumerate(tensors)}
    for file in files:
        save_file({name: tensors[name] for name in tensors if weight_map[name] == file}, path / file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def _padded(content: bytes, alignment: int) -> bytes:
    return content + bytes(-len(content) % alignment)


def _string(text: str) -> bytes:
    content = text.encode()
    return struct.pack("<Q", len(content)) + content


def _typed(value: Any) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _string(value)
        case np.ndarray():
            return struct.pack("<IIQ", 9, 5, len(value)) + value.astype("<i4").tobytes()
        case _:
            return _string_array(value)


def _string_array(texts: Iterable[str]) -> bytes:
    strings = [_string(text) for text in texts]
    return struct.pack("<IIQ", 9, 8, len(strings)) + b"".join(strings)
