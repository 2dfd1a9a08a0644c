"""Writes the Llama of a GGUF file as folders that mlx-lm loads and serves, so that both run the same weights.

Shares no code with `models`: names, row order and config are read from the file again, and so check what is read there.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

# as_stored: scales and biases in float16, as MLX reads them. float32: those in float32. dense: nothing packed, float32.
Form = Literal["as_stored", "float32", "dense"]

GROUP_SIZE = 32
_CONTROL = 3  # kind of a token, as ggml numbers them
_MODULES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}


def write(gguf: Path, folder: Path, form: Form) -> Path:
    """Write config.json and model.safetensors in one form, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    stored, metadata = _read(gguf)
    config = _config(stored, metadata)
    tensors = {_name(name): _halves(name, array, config) for name, array in stored.items()}
    if form != "as_stored":
        tensors = {name: _float32(array) for name, array in tensors.items()}
    if form == "dense":
        tensors = _expanded(tensors)
    else:
        config["quantization"] = _quantization(tensors)
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, {"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return folder


def write_tokenizer(gguf: Path, folder: Path, end: str) -> None:
    """Write the tokenizer of SmolLM2's kind (single digits, then byte-level BPE) beside a model.

    Args:
        gguf: whose metadata has it.
        folder: as `write` made it.
        end: the special token that ends a text; its id replaces the config's. One that no text has makes mlx-lm's
            server, which cannot be told to ignore the end, go on to the number of tokens that was asked for.
    """
    _, metadata = _read(gguf)
    tokens = list(metadata["tokenizer.ggml.tokens"])
    merges = [tuple(pair.split(" ")) for pair in metadata["tokenizer.ggml.merges"]]
    raw = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    raw.decoder = decoders.ByteLevel()
    kinds = metadata["tokenizer.ggml.token_type"].tolist()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    raw.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    raw.save(str(folder / "tokenizer.json"))
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end, "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": tokens.index(end)}, indent=1))


def _read(gguf: Path) -> tuple[dict[str, mx.array], dict[str, Any]]:
    loaded: Any = mx.load(str(gguf), return_metadata=True)
    return loaded


def _config(stored: Mapping[str, mx.array], metadata: Mapping[str, Any]) -> dict[str, Any]:
    def number(key: str) -> Any:
        return metadata[f"llama.{key}"].item()

    return {
        "model_type": "llama",
        "hidden_size": number("embedding_length"),
        "num_hidden_layers": number("block_count"),
        "intermediate_size": number("feed_forward_length"),
        "num_attention_heads": number("attention.head_count"),
        "num_key_value_heads": number("attention.head_count_kv"),
        "rms_norm_eps": number("attention.layer_norm_rms_epsilon"),
        "rope_theta": number("rope.freq_base"),
        "max_position_embeddings": number("context_length"),
        "vocab_size": stored["token_embd.weight"].shape[0],
        "tie_word_embeddings": "output.weight" not in stored,
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"].item(),
    }


def _name(stored: str) -> str:
    *layer, module, part = stored.split(".")
    prefix = f"model.layers.{layer[1]}." if layer else ""
    return f"{prefix}{_MODULES[module]}.{part}"


def _halves(name: str, array: mx.array, config: Mapping[str, Any]) -> mx.array:
    """Put the rows of q and k back: GGUF keeps neighbours to be rotated against each other, Hugging Face halves."""
    keys = {".attn_q.": "num_attention_heads", ".attn_k.": "num_key_value_heads"}
    heads = next((config[key] for part, key in keys.items() if part in name), None)
    if heads is None:
        return array
    neighbours = mx.unflatten(array, 0, (heads, -1, 2))  # [H * D, ...] -> [H, D / 2, 2, ...]
    return mx.flatten(mx.swapaxes(neighbours, 1, 2), 0, 2)


def _float32(array: mx.array) -> mx.array:
    return array.astype(mx.float32) if mx.issubdtype(array.dtype, mx.floating) else array


def _bits(tensors: Mapping[str, mx.array], module: str) -> int:
    return tensors[f"{module}.weight"].shape[1] * 32 // (tensors[f"{module}.scales"].shape[1] * GROUP_SIZE)


def _packed_modules(tensors: Mapping[str, mx.array]) -> list[str]:
    return [name.removesuffix(".scales") for name in tensors if name.endswith(".scales")]


def _quantization(tensors: Mapping[str, mx.array]) -> dict[str, Any]:
    bits = {module: _bits(tensors, module) for module in _packed_modules(tensors)}
    main = max(bits.values(), key=list(bits.values()).count)
    overrides = {module: {"group_size": GROUP_SIZE, "bits": own} for module, own in bits.items() if own != main}
    return {"group_size": GROUP_SIZE, "bits": main, **overrides}


def _expanded(tensors: Mapping[str, mx.array]) -> dict[str, mx.array]:
    packed = set(_packed_modules(tensors))
    dense = {name: array for name, array in tensors.items() if name.rpartition(".")[0] not in packed}
    for module in packed:
        codes, scales, biases = (tensors[f"{module}.{part}"] for part in ("weight", "scales", "biases"))
        bits = _bits(tensors, module)
        dense[f"{module}.weight"] = mx.dequantize(codes, scales, biases, group_size=GROUP_SIZE, bits=bits)
    return dense
