"""Which models lie in a folder of the operator's: each folder or GGUF file in it, by its name.

    <folder>/<name>/config.json                   is the model <name>
    <folder>/<name>.gguf                          too
    <folder>/<organisation>/<name>/config.json    is the model <organisation>/<name>
    <folder>/<organisation>/<name>.gguf           too

What has a name that no client could send is passed over. Links are followed: the folder is the operator's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gateway.catalogue import is_name

CONFIG_FILE = "config.json"
GGUF_SUFFIX = ".gguf"


def models_in(folder: Path) -> dict[str, Path]:
    """Return the checkpoints in a folder, by the names of their models; none where it cannot be read.

    Where a folder and a file have the same name, the folder is meant.
    """
    found: dict[str, Path] = {}
    for path in _entries(folder):
        for name, checkpoint in _models_at(path):
            if is_name(name):
                found.setdefault(name, checkpoint)
    return dict(sorted(found.items()))


def _models_at(path: Path) -> Iterator[tuple[str, Path]]:
    own = _checkpoint(path)
    if own is not None:
        yield own
    elif path.is_dir():
        for inner in _entries(path):
            checkpoint = _checkpoint(inner)
            if checkpoint is not None:
                yield f"{path.name}/{checkpoint[0]}", checkpoint[1]


def _checkpoint(path: Path) -> tuple[str, Path] | None:
    """Return the name of the model at `path`, and `path`; None where it is none."""
    if path.suffix.lower() == GGUF_SUFFIX and path.is_file():
        return path.stem, path
    return (path.name, path) if (path / CONFIG_FILE).is_file() else None


def _entries(folder: Path) -> list[Path]:
    """Return what is in a folder: folders first, each by name."""
    try:
        return sorted(folder.iterdir(), key=lambda path: (not path.is_dir(), path.name))
    except OSError:
        return []
