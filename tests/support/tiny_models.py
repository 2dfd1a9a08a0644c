"""Writes tiny random Llama checkpoints: a folder like one from Hugging Face, in MLX's layout where it is quantized.

Weights follow a fixed seed and are stored in float32, so that every reader computes with the same numbers. The
tokenizer has a token for every byte and four for frequent words; its chat template is one line a message.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

NUM_WORDS = 4
END_TOKEN_ID = 256 + NUM_WORDS
VOCAB_SIZE = 288
CONFIG: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "vocab_size": VOCAB_SIZE,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "eos_token_id": END_TOKEN_ID,
}
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def write_llama(
    folder: Path,
    *,
    config: Mapping[str, Any] | None = None,
    quantization: Mapping[str, Any] | None = None,
    seed: int = 0,
    num_shards: int = 1,
) -> Path:
    """Write a checkpoint and return its folder.

    Args:
        folder: made if it is not there.
        config: keys that differ from `CONFIG`.
        quantization: MLX's block for config.json, `{"bits": 4, "group_size": 32, <module>: {...} | False}`; applied to
            the embedding and every linear layer.
        seed: of the weights.
        num_shards: files to spread the tensors over; more than one makes an index.
    """
    folder.mkdir(parents=True, exist_ok=True)
    full: dict[str, Any] = {**CONFIG, **(config or {})}
    if quantization is not None:
        full["quantization"] = full["quantization_config"] = dict(quantization)
    tensors: dict[str, mx.array] = {}
    mx.random.seed(seed)
    for name, weight in random_tensors(full):
        tensors.update(packed(name, weight, quantization))
    write_tensors(folder, tensors, num_shards)
    (folder / "config.json").write_text(json.dumps(full, indent=1))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": END_TOKEN_ID}))
    write_tokenizer(folder)
    return folder


def random_tensors(config: Mapping[str, Any]) -> Iterator[tuple[str, mx.array]]:
    """Yield every tensor of a Llama by name, float32."""
    width, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim") or width // heads
    kv_width = config["num_key_value_heads"] * head_dim
    attention_bias, mlp_bias = config.get("attention_bias", False), config.get("mlp_bias", False)
    yield "model.embed_tokens.weight", mx.random.normal((config["vocab_size"], width))
    for index in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{index}"
        yield from _linear(f"{prefix}.self_attn.q_proj", heads * head_dim, width, attention_bias)
        yield from _linear(f"{prefix}.self_attn.k_proj", kv_width, width, attention_bias)
        yield from _linear(f"{prefix}.self_attn.v_proj", kv_width, width, attention_bias)
        yield from _linear(f"{prefix}.self_attn.o_proj", width, heads * head_dim, attention_bias)
        yield from _linear(f"{prefix}.mlp.gate_proj", inner, width, mlp_bias)
        yield from _linear(f"{prefix}.mlp.up_proj", inner, width, mlp_bias)
        yield from _linear(f"{prefix}.mlp.down_proj", width, inner, mlp_bias)
        yield f"{prefix}.input_layernorm.weight", 1 + 0.1 * mx.random.normal((width,))
        yield f"{prefix}.post_attention_layernorm.weight", 1 + 0.1 * mx.random.normal((width,))
    yield "model.norm.weight", 1 + 0.1 * mx.random.normal((width,))
    if not config["tie_word_embeddings"]:
        yield from _linear("lm_head", config["vocab_size"], width, False)


def packed(name: str, weight: mx.array, quantization: Mapping[str, Any] | None) -> dict[str, mx.array]:
    """Return a tensor as a checkpoint with this quantization stores it."""
    module = name.removesuffix(".weight")
    if quantization is None or weight.ndim < 2 or name.endswith("conv1d.weight"):
        return {name: weight}
    own = quantization.get(module, quantization)
    if own is False:
        return {name: weight}
    mode = own.get("mode", "affine")
    parts = mx.quantize(weight, group_size=own["group_size"], bits=own["bits"], mode=mode)
    return dict(zip((name, f"{module}.scales", f"{module}.biases"), parts, strict=False))


def write_tensors(folder: Path, tensors: Mapping[str, mx.array], num_shards: int = 1) -> None:
    """Write tensors as one safetensors file, or as shards with an index."""
    if num_shards == 1:
        mx.save_safetensors(str(folder / "model.safetensors"), dict(tensors), {"format": "mlx"})
        return
    names = sorted(tensors)
    files = [f"model-{index + 1:05}-of-{num_shards:05}.safetensors" for index in range(num_shards)]
    for index, file in enumerate(files):
        shard = {name: tensors[name] for name in names[index::num_shards]}
        mx.save_safetensors(str(folder / file), shard, {"format": "mlx"})
    weight_map = {name: files[position % num_shards] for position, name in enumerate(names)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def write_tokenizer(folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: index for index, letter in enumerate(letters)}
    merges = [("t", "h"), ("th", "e"), ("i", "n"), ("a", "n")]
    vocab |= {left + right: len(letters) + index for index, (left, right) in enumerate(merges)}
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<|end|>", "chat_template": CHAT_TEMPLATE, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def _linear(module: str, outputs: int, inputs: int, bias: bool) -> Iterator[tuple[str, mx.array]]:
    yield f"{module}.weight", mx.random.normal((outputs, inputs)) * inputs**-0.5
    if bias:
        yield f"{module}.bias", 0.1 * mx.random.normal((outputs,))
