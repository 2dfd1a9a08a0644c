"""What sections of the settings have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict

from gateway.byte_sizes import size_or_count

MIB = 1024 * 1024
GIB = 1024 * MIB

Bytes = Annotated[int, BeforeValidator(size_or_count)]
"""A size: a number of bytes, or a text such as "800M", "1.5G" or "2GiB"."""


class Section(BaseModel):
    """A part of the tree: frozen, and strict about its keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def absolute(path: Path) -> Path:
    """Return a path from the root: of a relative one, from the current folder."""
    return path.expanduser().absolute()
