"""The folder of the prefix cache's tier on disk: what is in it, how files enter it, and what leaves it.

Every fingerprint has a folder of its own under one parent, and several workers may use the parent at once. The cap is
of the parent: what an earlier checkpoint left counts, and goes first since nobody reads it any more. Nothing but files
with our names is ever counted or deleted. A worker knows its own writes and looks at the whole again whenever it has
written a sixteenth of the cap, so N workers that write at the same time can pass the cap by N - 1 sixteenths.

Nothing is synced: after a loss of power a file may lack its end, which its checksum shows, and a sync for each block
would cost more than the block is worth. What a killed process has written stays.
"""

import contextlib
import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_FOLDER = re.compile(r"blocks-[0-9a-f]{32}")
_BLOCK = re.compile(r"[0-9a-f]{64}\.kv")
_UNFINISHED = re.compile(r"[0-9a-f]{64}\.[0-9a-f]{16}\.tmp")


class ForeignFolderError(OSError):
    """Raised when the folder belongs to somebody else or is none."""


class CapReachedError(OSError):
    """Raised when a file does not fit under the cap with all else gone that may go."""


@dataclass(frozen=True, slots=True, order=True)
class _File:
    used_ns: int
    num_bytes: int
    path: Path


class PrefixFolder:
    """Holds files within a cap; made and changed by one thread.

    Args:
        parent: what all workers share; made if it is not there.
        name: of this worker's own folder, 32 hexadecimal digits.
        max_bytes: of all files of all workers under `parent`, unfinished ones too.
    """

    def __init__(self, parent: Path, name: str, max_bytes: int) -> None:
        self._parent = parent
        self._own = parent / f"blocks-{name}"
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._unseen_bytes = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all files under the parent, as far as this worker knows."""
        return self._num_bytes

    def path(self, name: bytes) -> Path:
        """Return where the block of a name is, if it is."""
        return self._own / f"{name.hex()}.kv"

    def create(self) -> None:
        """Make sure that the folder is there and closed to others.

        Raises:
            OSError: it cannot be made, or is not ours.
        """
        self._parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            self._own.mkdir(mode=0o700)
        found = self._own.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise ForeignFolderError("the folder of the prefix cache is not ours")
        if stat.S_IMODE(found.st_mode) != 0o700:
            self._own.chmod(0o700)

    def write(self, name: bytes, pieces: Sequence[bytes]) -> bool:
        """Add a file, whole or not at all, after making room for it; return False if it was there.

        Raises:
            OSError: the disk or the cap is full, the folder may not be written, or it fails.
        """
        num_bytes = sum(map(len, pieces))
        path = self.path(name)
        if _size(path) == num_bytes:
            return False  # a name stands for one content
        self.create()
        self._make_room(num_bytes)
        replaced_bytes = _size(path)
        unfinished = path.with_suffix(f".{secrets.token_hex(8)}.tmp")
        try:
            _write_locked(unfinished, path, pieces)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise
        self._num_bytes += num_bytes - replaced_bytes
        self._unseen_bytes += num_bytes
        return True

    def touch(self, names: Sequence[bytes]) -> None:
        """Mark blocks of one sequence, given in its order, as used now.

        A block counts as used a nanosecond before the one that it follows: without its beginning it is worth nothing.
        """
        now_ns = time.time_ns()
        for index, name in enumerate(names):
            with contextlib.suppress(OSError):
                os.utime(self.path(name), ns=(now_ns - index, now_ns - index), follow_symlinks=False)

    def tidy(self, room_bytes: int = 0) -> None:
        """Count all files; delete what dead writers left, and past the cap what was not used for longest.

        Args:
            room_bytes: to be free under the cap afterwards. If anything has to go, a sixteenth of the cap goes, so that
                not every write looks at every file.
        """
        files: list[_File] = []
        self._num_bytes = 0
        for folder in _folders(self._parent):
            for file in _files(folder):
                if file.path.suffix == ".tmp" and _is_abandoned(file.path):
                    with contextlib.suppress(OSError):
                        file.path.unlink(missing_ok=True)
                    continue
                self._num_bytes += file.num_bytes
                if file.path.suffix != ".tmp":
                    files.append(file)
        self._unseen_bytes = 0
        if self._num_bytes + room_bytes > self._max_bytes:
            self._delete(sorted(files), min(self._max_bytes - room_bytes, self._max_bytes - self._max_bytes // 16))

    def _delete(self, files: Sequence[_File], limit_bytes: int) -> None:
        for file in files:
            if self._num_bytes <= limit_bytes:
                break
            with contextlib.suppress(OSError):  # another user's
                file.path.unlink(missing_ok=True)
                self._num_bytes -= file.num_bytes
        for folder in _folders(self._parent):
            if folder != self._own:
                with contextlib.suppress(OSError):  # it still holds something
                    folder.rmdir()

    def _make_room(self, num_bytes: int) -> None:
        is_full = self._num_bytes + num_bytes > self._max_bytes
        if is_full or self._unseen_bytes >= self._max_bytes // 16:
            self.tidy(num_bytes)
        if self._num_bytes + num_bytes > self._max_bytes:
            raise CapReachedError("nothing more can go")


def _write_locked(unfinished: Path, path: Path, pieces: Sequence[bytes]) -> None:
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "wb") as stream:
        # The lock goes with its process, so what is unfinished and unlocked was left by a dead one.
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for piece in pieces:
            stream.write(piece)
        stream.flush()
        # Between its opening and its lock, another worker may have taken it for a dead one's.
        with contextlib.suppress(FileNotFoundError):
            unfinished.replace(path)


def _is_abandoned(unfinished: Path) -> bool:
    try:
        fd = os.open(unfinished, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(fd)


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def _folders(parent: Path) -> Iterator[Path]:
    with os.scandir(parent) as entries:
        for entry in entries:
            if _FOLDER.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                yield Path(entry.path)


def _files(folder: Path) -> Iterator[_File]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:  # gone, or another user's
        for entry in entries:
            if not (_BLOCK.fullmatch(entry.name) or _UNFINISHED.fullmatch(entry.name)):
                continue
            with contextlib.suppress(OSError):
                found = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(found.st_mode):
                    yield _File(found.st_mtime_ns, found.st_size, Path(entry.path))
