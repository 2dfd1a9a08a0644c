"""Canonical names of tensors and modules: those of a plain Llama checkpoint of Hugging Face.

Converters wrap the text part of a model in prefixes (`language_model.model.…`, `model.language_model.…`), and write
module names of quantization overrides in yet other ways (`layers.0.…`). All of them meet here.
"""

from __future__ import annotations

# What modules of routed experts are called: stacked by mlx-lm, one by one or fused by Hugging Face.
_GUESSING = ".mtp."
_EXPERT_MARKS = ("switch_glu", "switch_mlp", ".experts.")
_WRAPPERS = frozenset({"model", "language_model"})
_INNER = frozenset(
    {
        "layers",
        "embed_tokens",
        "norm",
        "embed_tokens_per_layer",
        "per_layer_model_projection",
        "per_layer_projection_norm",
    }
)


def canonical_name(name: str) -> str:
    """Return the canonical form of a tensor's or module's name.

    `language_model.model.layers.0.x`, `model.language_model.layers.0.x` and `layers.0.x` become `model.layers.0.x`;
    `language_model.lm_head.x` becomes `lm_head.x`; a name outside the text part stays as it is.
    """
    parts = name.split(".")
    count = 0
    while count < len(parts) - 1 and parts[count] in _WRAPPERS:
        count += 1
    rest = parts[count:]
    if rest[0] == "lm_head":
        return ".".join(rest)
    return ".".join(["model", *rest]) if count or rest[0] in _INNER else name


def is_expert_name(name: str) -> bool:
    """Tell by its canonical or stored name whether a tensor is of routed experts, of which a token needs a few.

    Those of a part that guesses tokens ahead are none: no text model reads them.
    """
    return any(mark in name for mark in _EXPERT_MARKS) and _GUESSING not in f".{name}"
