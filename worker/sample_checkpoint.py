"""A random checkpoint of Llama's shape, for checks that need a model and no meaning."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

BITS = 4
GROUP_SIZE = 32
END_TOKEN = "<|end|>"  # noqa: S105 - a token of a vocabulary
TEMPLATE = "{% for message in messages %}{{ message['content'] + '\n' }}{% endfor %}"
WEIGHT_SCALE = 0.05


@dataclass(frozen=True, slots=True)
class Shape:
    """How large the checkpoint is; a head is 64 wide, and three query heads share one of keys and values."""

    layers: int
    width: int
    inner: int
    vocabulary: int

    def config(self) -> dict[str, Any]:
        """Return what config.json says."""
        heads = self.width // 64
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.width,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": heads,
            "num_key_value_heads": max(1, heads // 3),
            "head_dim": 64,
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10_000.0,
            "vocab_size": self.vocabulary,
            "hidden_act": "silu",
            "tie_word_embeddings": True,
            "quantization": {"bits": BITS, "group_size": GROUP_SIZE},
        }


def write_sample(folder: Path, shape: Shape) -> Path:
    """Write a 4-bit checkpoint with a tokenizer of one token a byte.

    Args:
        folder: an empty folder.
        shape: `width` a multiple of 192, `vocabulary` more than 256.

    Returns:
        `folder`.
    """
    mx.random.seed(0)
    tensors: dict[str, mx.array] = {}
    for name, dimensions in _tensors(shape):
        if len(dimensions) == 1:
            tensors[name] = mx.ones(dimensions)
        else:
            codes, scales, biases = mx.quantize(
                mx.random.normal(dimensions) * WEIGHT_SCALE, group_size=GROUP_SIZE, bits=BITS
            )
            module = name.removesuffix(".weight")
            tensors |= {name: codes, f"{module}.scales": scales, f"{module}.biases": biases}
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, {"format": "mlx"})  # pyright: ignore[reportUnknownMemberType]
    (folder / "config.json").write_text(json.dumps(shape.config()), "utf-8")
    _write_tokenizer(folder)
    return folder


def _tensors(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    config = shape.config()
    queries, values = config["num_attention_heads"] * 64, config["num_key_value_heads"] * 64
    yield "model.embed_tokens.weight", (shape.vocabulary, shape.width)
    yield "model.norm.weight", (shape.width,)
    for index in range(shape.layers):
        layer = f"model.layers.{index}"
        yield f"{layer}.self_attn.q_proj.weight", (queries, shape.width)
        yield f"{layer}.self_attn.k_proj.weight", (values, shape.width)
        yield f"{layer}.self_attn.v_proj.weight", (values, shape.width)
        yield f"{layer}.self_attn.o_proj.weight", (shape.width, queries)
        yield f"{layer}.mlp.gate_proj.weight", (shape.inner, shape.width)
        yield f"{layer}.mlp.up_proj.weight", (shape.inner, shape.width)
        yield f"{layer}.mlp.down_proj.weight", (shape.width, shape.inner)
        yield f"{layer}.input_layernorm.weight", (shape.width,)
        yield f"{layer}.post_attention_layernorm.weight", (shape.width,)


def _write_tokenizer(folder: Path) -> None:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.add_special_tokens([AddedToken(END_TOKEN, special=True)])  # pyright: ignore[reportUnknownMemberType]
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": END_TOKEN, "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
