"""Writes tiny random LoRA adapters, as mlx-lm's tool or PEFT would."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
import numpy as np
from safetensors.numpy import save_file

from models.adapters.target import AdapterTarget

Layout = Literal["mlx", "peft"]

ATTENTION = ("q_proj", "v_proj")
EVERY = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
DTYPES = {"float32": np.float32, "float16": np.float16}


def llama_targets(width: int = 64, keys: int = 32, inner: int = 128, num_layers: int = 2) -> dict[str, AdapterTarget]:
    """Return the layers of a tiny Llama that adapters may change."""
    shapes = {
        "self_attn.q_proj": (width, width),
        "self_attn.k_proj": (width, keys),
        "self_attn.v_proj": (width, keys),
        "self_attn.o_proj": (width, width),
        "mlp.gate_proj": (width, inner),
        "mlp.up_proj": (width, inner),
        "mlp.down_proj": (inner, width),
    }
    names = {f"model.layers.{layer}.{name}": shape for layer in range(num_layers) for name, shape in shapes.items()}
    return {name: AdapterTarget(name, *shape) for name, shape in names.items()}


def factors(
    targets: Iterable[AdapterTarget], rank: int | Mapping[str, int] = 4, *, seed: int = 0, size: float = 0.3
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return for each module random float32 [inputs, rank] and [rank, outputs]."""
    rng = np.random.default_rng(seed)
    made: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for target in targets:
        own = rank if isinstance(rank, int) else rank[target.module]
        a = rng.normal(0, size, (target.inputs, own)).astype(np.float32)
        made[target.module] = a, rng.normal(0, size, (own, target.outputs)).astype(np.float32)
    return made


def named(
    matrices: Mapping[str, tuple[np.ndarray, np.ndarray]], layout: Layout, *, prefix: str | None = None
) -> dict[str, np.ndarray]:
    """Return the tensors of an adapter under the names of a layout, as they lie in it."""
    if layout == "mlx":
        start = prefix or ""
        halves = {f"{start}{module}": pair for module, pair in matrices.items()}
        return {f"{m}.lora_{side}": x for m, pair in halves.items() for side, x in zip("ab", pair, strict=True)}
    start = "base_model.model." if prefix is None else prefix
    return {
        f"{start}{module}.lora_{side}.weight": np.ascontiguousarray(matrix.T)
        for module, pair in matrices.items()
        for side, matrix in zip("AB", pair, strict=True)
    }


def settings_of(layout: Layout, rank: int | None = 4, **changes: Any) -> dict[str, Any]:
    """Return the settings that come with such tensors: of scale 2 in either layout for rank 4."""
    if layout == "mlx":
        parameters = {"rank": rank, "scale": 2.0, "dropout": 0.0, **changes.pop("lora_parameters", {})}
        return {"fine_tune_type": "lora", "num_layers": 16, "lora_parameters": parameters, **changes}
    return {"peft_type": "LORA", "r": rank, "lora_alpha": 8, "bias": "none", "target_modules": None} | changes


def write_adapter(
    folder: Path,
    tensors: Mapping[str, np.ndarray],
    settings: Mapping[str, Any] | None,
    *,
    weights_file: str = "adapters.safetensors",
    settings_file: str = "adapter_config.json",
    dtype: str = "float32",
) -> Path:
    """Write an adapter's folder, with no settings where they are None."""
    folder.mkdir(parents=True, exist_ok=True)
    if dtype == "bfloat16":  # which NumPy has not
        mx.save_safetensors(
            str(folder / weights_file), {name: mx.array(x).astype(mx.bfloat16) for name, x in tensors.items()}
        )
    else:
        plain = {name: np.ascontiguousarray(matrix.astype(DTYPES[dtype])) for name, matrix in tensors.items()}
        save_file(plain, folder / weights_file)
    if settings is not None:
        (folder / settings_file).write_text(json.dumps(settings))
    return folder


def write_random(
    folder: Path,
    *,
    targets: Mapping[str, AdapterTarget] | None = None,
    modules: tuple[str, ...] = EVERY,
    layout: Layout = "mlx",
    rank: int = 4,
    seed: int = 0,
    size: float = 0.3,
    dtype: str = "float32",
) -> Path:
    """Write a random adapter of some modules of a tiny Llama."""
    every = llama_targets() if targets is None else targets
    chosen = [target for module, target in every.items() if module.rpartition(".")[2] in modules]
    tensors = named(factors(chosen, rank, seed=seed, size=size), layout)
    files = {"mlx": "adapters.safetensors", "peft": "adapter_model.safetensors"}
    return write_adapter(folder, tensors, settings_of(layout, rank), weights_file=files[layout], dtype=dtype)
