"""The folder in which this gateway's workers listen: private, locked while it is in use, removed when it is not.

A socket's path must fit into 104 bytes on macOS, so the folder lies directly in `/tmp` and not in the user's own
temporary folder. The lock is a shared one of an open descriptor: a folder that can be locked alone belongs to no one
alive. A folder is moved to its name only once it is locked, so none is ever seen without its lock. What is removed is
named as ours and holds nothing but sockets: other folders whose names begin alike are their owner's.
"""

import contextlib
import fcntl
import os
import re
import secrets
import stat
import tempfile
from pathlib import Path

PREFIX = "pomona-"
_NAME = re.compile(rf"{PREFIX}[0-9a-f]{{8}}")
PARENT = Path("/tmp")  # noqa: S108 - short on every system; the folder is made for its owner alone


class SocketFolder:
    """A folder that only this user may enter, for the sockets of one gateway's workers."""

    def __init__(self, parent: Path = PARENT) -> None:
        """Remove what dead gateways left in `parent` and make a new folder there."""
        remove_stale(parent)
        self._parent = parent
        self.path, self._lock_fd = _make(parent)

    def socket_path(self, instance_id: str) -> Path:
        """Return where the worker of that instance listens; no two instances share it."""
        return self.path / f"w-{instance_id}.sock"

    def restore(self) -> None:
        """Make another folder where this one is gone: those who clean up temporary folders may take it for old.

        Raises:
            OSError: none can be made.
        """
        if self._lock_fd >= 0 and not self._is_there():
            old_fd = self._lock_fd
            self.path, self._lock_fd = _make(self._parent)
            os.close(old_fd)

    def close(self) -> None:
        """Remove the folder; a second call does nothing."""
        if self._lock_fd >= 0:
            _empty(self.path)
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _is_there(self) -> bool:
        with contextlib.suppress(OSError):
            return os.path.samestat(self.path.lstat(), os.fstat(self._lock_fd))
        return False


def _make(parent: Path) -> tuple[Path, int]:
    """Make a folder in `parent`; return it with the descriptor that locks it."""
    made = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=parent))
    with contextlib.ExitStack() as undo:
        undo.callback(made.rmdir)
        lock_fd = _open_folder(made)
        undo.callback(os.close, lock_fd)
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder = made.rename(parent / f"{PREFIX}{secrets.token_hex(4)}")
        undo.pop_all()
    return folder, lock_fd


def remove_stale(parent: Path = PARENT) -> list[Path]:
    """Remove this user's folders whose gateway is gone.

    Returns:
        What was removed.
    """
    named = [folder for folder in sorted(parent.glob(f"{PREFIX}*")) if _NAME.fullmatch(folder.name)]
    return [folder for folder in named if _remove_if_stale(folder)]


def _remove_if_stale(folder: Path) -> bool:
    with contextlib.suppress(OSError):  # In use, not ours to open, or removed by another gateway meanwhile.
        lock_fd = _open_folder(folder)
        try:
            if os.fstat(lock_fd).st_uid == os.getuid():
                fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return _empty(folder)
        finally:
            os.close(lock_fd)
    return False


def _empty(folder: Path) -> bool:
    """Remove a folder of sockets; return whether it is gone, for one that holds anything else stays."""
    with contextlib.suppress(OSError):
        for entry in folder.iterdir():
            if stat.S_ISSOCK(entry.lstat().st_mode):
                entry.unlink()
        folder.rmdir()
    return not folder.exists()


def _open_folder(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
