"""The folder of adapters that an operator has put there: clients name them and never say where they lie."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from models.adapters.files import WEIGHTS_FILES
from models.adapters.names import is_adapter_name

MAX_LISTED = 10_000


class AdapterStore:
    """Adapters by name: folders with weights, or of an organisation's folder (`name`, `organisation/name`).

    Args:
        folder: where they are; None: there are none. It is looked at anew at each question.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def find(self, name: str) -> Path | None:
        """Return the folder of an adapter; None where there is none of that name, or the name is none."""
        return self._folders().get(name) if is_adapter_name(name) else None

    def names(self) -> list[str]:
        """Return the names of all adapters, at most 10,000, in alphabetical order."""
        return sorted(self._folders())

    def _folders(self) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for folder in _subfolders(self._folder):
            inner = [folder] if _is_adapter(folder) else [each for each in _subfolders(folder) if _is_adapter(each)]
            for each in inner:
                name = folder.name if each is folder else f"{folder.name}/{each.name}"
                if is_adapter_name(name) and len(found) < MAX_LISTED:
                    found[name] = each
        return found


def _is_adapter(folder: Path) -> bool:
    return any((folder / name).exists() for name in WEIGHTS_FILES)


def _subfolders(folder: Path | None) -> Iterator[Path]:
    """Return the folders in a folder, by name; none where it is not there or may not be read."""
    if folder is None:
        return
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir())
    except OSError:
        return
    for name in names:
        yield folder / name
