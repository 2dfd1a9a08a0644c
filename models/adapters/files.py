"""Finding the two files of an adapter's folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from models.adapters.errors import AdapterMissing, AdapterRejected, as_adapters
from models.checkpoint.files import inside

# In the order in which they are looked for.
WEIGHTS_FILES = ("adapters.safetensors", "adapter_model.safetensors")
SETTINGS_FILES = ("optiq_lora_config.json", "adapter_config.json")
_PICKLES = ("adapter_model.bin", "adapter_model.pt", "adapters.npz")


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """The weights and the settings of one adapter."""

    weights: Path
    settings: Path


def find_files(folder: Path) -> AdapterFiles:
    """Find an adapter's weights and settings.

    Raises:
        AdapterMissing: there is no such folder.
        AdapterRejected: a file is not in it, is kept in a format that is not read, or is a link that leads outside.
    """
    if not folder.is_dir():
        raise AdapterMissing("there is no such folder", file=folder.name)
    weights = _first(folder, WEIGHTS_FILES)
    if weights is None:
        pickle = next((name for name in _PICKLES if (folder / name).exists()), None)
        if pickle is not None:
            raise AdapterRejected("is not safetensors, the one format that is read", file=pickle)
        raise AdapterRejected(f"has neither {' nor '.join(WEIGHTS_FILES)}", file=folder.name)
    settings = _first(folder, SETTINGS_FILES)
    if settings is None:
        raise AdapterRejected(f"has neither {' nor '.join(SETTINGS_FILES)}", file=folder.name)
    return AdapterFiles(weights, settings)


def _first(folder: Path, names: tuple[str, ...]) -> Path | None:
    name = next((name for name in names if (folder / name).exists()), None)
    if name is None:
        return None
    with as_adapters():
        return inside(folder, name, named_by=folder.name)
