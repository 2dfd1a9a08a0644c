"""Bounds of what earlier prompts leave behind; plain Python."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PrefixSettings:
    """Bounds of what is kept.

    Attributes:
        max_bytes: of keys and values in memory; 0: none are kept.
        folder: where they outlive the process; None: nowhere.
        folder_max_bytes: of that folder.
    """

    max_bytes: int = 512 << 20
    folder: Path | None = None
    folder_max_bytes: int = 8 << 30
