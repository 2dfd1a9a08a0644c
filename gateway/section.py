"""What sections of the settings have in common."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

MIB = 1024 * 1024
GIB = 1024 * MIB


class Section(BaseModel):
    """A part of the tree: frozen, and strict about its keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def absolute(path: Path) -> Path:
    """Return a path from the root: of a relative one, from the current folder."""
    return path.expanduser().absolute()
