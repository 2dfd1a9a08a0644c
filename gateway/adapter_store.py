"""The folder of a model's adapters as the gateway sees it: names alone, which a worker looks up again by itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from gateway.catalogue import is_name

# One of them makes a folder an adapter's.
WEIGHTS_FILES = ("adapters.safetensors", "adapter_model.safetensors")
MAX_LISTED = 10_000


def stored_adapters(folder: Path | None) -> tuple[str, ...]:
    """Return the names of the adapters in a folder (`name`, `organisation/name`), in order, at most 10,000.

    Args:
        folder: it is read; None, or one that is not there or may not be read: there are none.
    """
    found: list[str] = []
    for each in _subfolders(folder):
        inner = [each] if _is_adapter(each) else [one for one in _subfolders(each) if _is_adapter(one)]
        found += [each.name if one is each else f"{each.name}/{one.name}" for one in inner]
    return tuple(sorted(name for name in found if is_name(name))[:MAX_LISTED])


def _is_adapter(folder: Path) -> bool:
    return any((folder / name).exists() for name in WEIGHTS_FILES)


def _subfolders(folder: Path | None) -> Iterator[Path]:
    if folder is None:
        return
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir())
    except OSError:
        return
    for name in names:
        yield folder / name
