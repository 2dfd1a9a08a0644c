"""Mounts tiny adapters beside tiny models."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from models.adapters.adapter import open_adapter
from models.adapters.target import AdapterTarget
from models.layers.adapter_bank import AdapterBank
from models.registry import LoadedModel
from tests.support.tiny_adapters import Layout, factors, named, settings_of, write_adapter

FILES = {"mlx": "adapters.safetensors", "peft": "adapter_model.safetensors"}


def bank_of(loaded: LoadedModel) -> AdapterBank:
    assert loaded.adapters is not None
    return loaded.adapters


def targets_of(loaded: LoadedModel) -> Mapping[str, AdapterTarget]:
    return bank_of(loaded).targets


def write_for(
    folder: Path,
    loaded: LoadedModel,
    *,
    layout: Layout = "mlx",
    rank: int = 4,
    seed: int = 0,
    size: float = 0.3,
    within: str = "",
    scale: float = 2.0,
    prefix: str | None = None,
) -> Path:
    """Write an adapter of every layer whose module has `within` in its name."""
    chosen = [target for module, target in targets_of(loaded).items() if within in module]
    tensors: dict[str, np.ndarray] = named(factors(chosen, rank, seed=seed, size=size), layout, prefix=prefix)
    parameters = {"lora_parameters": {"scale": scale}} if layout == "mlx" else {"lora_alpha": scale * rank}
    return write_adapter(folder, tensors, settings_of(layout, rank, **parameters), weights_file=FILES[layout])


def mount(loaded: LoadedModel, folder: Path) -> int:
    bank = bank_of(loaded)
    return bank.mount(open_adapter(folder, bank.targets).read())


def mount_random(loaded: LoadedModel, folder: Path, **options: int | float | str) -> int:
    return mount(loaded, write_for(folder, loaded, **options))  # pyright: ignore[reportArgumentType]
