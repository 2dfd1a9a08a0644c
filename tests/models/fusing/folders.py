"""Writes a tiny model and an adapter of it, to be made one."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.adapters.target import AdapterTarget
from models.fusing.fuse import Fused, fuse
from tests.support.tiny_adapters import Layout, factors, llama_targets, named, settings_of, write_adapter
from tests.support.tiny_models import write_llama


@dataclass(frozen=True, slots=True)
class Folders:
    """The three folders of a fusing."""

    model: Path
    adapter: Path
    output: Path

    def fuse(self, **options: Any) -> Fused:
        return fuse(self.model, self.adapter, self.output, lambda _: None, lambda *_: None, **options)


def write(
    folder: Path,
    quantization: dict[str, Any] | None = None,
    *,
    layout: Layout = "mlx",
    modules: tuple[str, ...] = ("q_proj", "down_proj"),
    size: float = 0.3,
) -> Folders:
    """Write a Llama of two layers, and an adapter of some of its modules."""
    model = write_llama(folder / "model", quantization=quantization)
    chosen: list[AdapterTarget] = [
        target for name, target in llama_targets().items() if name.rpartition(".")[2] in modules
    ]
    tensors = named(factors(chosen, size=size), layout)
    files = {"mlx": "adapters.safetensors", "peft": "adapter_model.safetensors"}
    adapter = write_adapter(folder / "adapter", tensors, settings_of(layout), weights_file=files[layout])
    return Folders(model, adapter, folder / "fused")
