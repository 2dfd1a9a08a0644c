"""Which file a path led to, so that one that was replaced or written to is noticed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from models.checkpoint.errors import CheckpointCorrupt


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """A file as it was looked at: device, inode, bytes, and time of change in nanoseconds."""

    device: int
    inode: int
    size_bytes: int
    changed_ns: int

    @classmethod
    def of(cls, stat: os.stat_result) -> FileIdentity:
        """Take what the system says of a file."""
        return cls(stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)

    def check(self, path: Path) -> None:
        """Refuse to go on where a path no longer leads to the file as it was.

        Raises:
            CheckpointCorrupt: it was replaced, removed or written to.
        """
        try:
            is_same = FileIdentity.of(path.stat()) == self
        except OSError:
            is_same = False
        if not is_same:
            raise CheckpointCorrupt("was changed while it was read", file=path.name)
