"""Writing what is to be there whole or not at all: bringing it to the disk, and telling which file a path leads to."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path

# Left free on the disk, for everybody else.
SPARE_BYTES = 64 << 20
# What the system says where a disk is full, or what its owner may have of it.
FULL_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT})


def sync(descriptor: int) -> None:
    """Bring a file or a folder to the disk itself; on macOS, fsync(2) leaves it in the drive's own memory.

    Raises:
        OSError: the disk fails.
    """
    os.fsync(descriptor)
    full_sync = getattr(fcntl, "F_FULLFSYNC", None)
    if full_sync is not None:
        with contextlib.suppress(OSError):  # not every file system has it
            fcntl.fcntl(descriptor, full_sync)


def sync_path(path: Path) -> None:
    """Do the same for the file or folder that a path leads to.

    Raises:
        OSError: it cannot be opened, or the disk fails.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def is_at(path: Path, descriptor: int) -> bool:
    """Tell whether a path is still the one of an open file or folder, and no link to it.

    Raises:
        OSError: the path cannot be looked at.
    """
    try:
        return os.path.samestat(path.stat(follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False
