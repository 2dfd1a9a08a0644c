"""Bytes that the event loop brings while a decoder's thread reads them.

Most containers are read forward, so a `Pipe` holds what is not yet read and nothing else. Some may have to be read
again, out of order, once all is there: those lie in a `GrowingFile`.
"""

from __future__ import annotations

import os
import tempfile
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable

from worker.audio.errors import AudioNotStored


class Spool(ABC):
    """What both have in common; only `read` waits, and only until bytes come, or `end` or `abandon` is called."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._changed = threading.Condition()
        self._is_ended = False
        self._is_abandoned = False

    @property
    @abstractmethod
    def is_full(self) -> bool:
        """Whether more should wait."""

    @property
    @abstractmethod
    def is_drained(self) -> bool:
        """Whether a reader would have to wait."""

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody brings or reads any more."""
        return self._is_abandoned

    @abstractmethod
    def put(self, chunk: bytes) -> None:
        """Add bytes at the end."""

    def end(self) -> None:
        """Say that no more come."""
        with self._changed:
            self._is_ended = True
            self._changed.notify()

    def abandon(self) -> None:
        """Free what is there; a reader finds the end."""
        with self._changed:
            self._is_abandoned = self._is_ended = True
            self._free()
            self._changed.notify()

    @abstractmethod
    def read(self, size: int) -> bytes:
        """Return up to `size` bytes, as soon as there are any; none at the end."""

    @abstractmethod
    def _free(self) -> None:
        """Give back what the bytes take."""


class Pipe(Spool):
    """Bytes in memory, which are gone once they are read.

    Args:
        max_bytes: beyond so many unread, the pipe is full.
        on_room: called by the reader when it no longer is.
    """

    def __init__(self, max_bytes: int, on_room: Callable[[], None]) -> None:
        super().__init__()
        self._max_bytes = max_bytes
        self._on_room = on_room
        self._chunks: deque[memoryview] = deque()
        self._num_bytes = 0

    @property
    def is_full(self) -> bool:
        """See `Spool`."""
        return self._num_bytes > self._max_bytes

    @property
    def is_drained(self) -> bool:
        """See `Spool`."""
        return self._num_bytes == 0 and not self._is_ended

    def put(self, chunk: bytes) -> None:
        """See `Spool`."""
        with self._changed:
            if chunk and not self._is_abandoned:
                self._chunks.append(memoryview(chunk))
                self._num_bytes += len(chunk)
                self._changed.notify()

    def abandon(self) -> None:
        """See `Spool`."""
        super().abandon()
        self._on_room()

    def read(self, size: int) -> bytes:
        """See `Spool`."""
        with self._changed:
            self._changed.wait_for(lambda: self._chunks or self._is_ended)
            if not self._chunks:
                return b""
            was_full = self.is_full
            chunk = self._chunks.popleft()
            if len(chunk) > size:
                self._chunks.appendleft(chunk[size:])
            self._num_bytes -= min(size, len(chunk))
        if was_full and not self.is_full:
            self._on_room()
        return bytes(chunk[:size])

    def _free(self) -> None:
        self._chunks.clear()
        self._num_bytes = 0


class GrowingFile(Spool):
    """Bytes in a file without a name: read forward while they come, then in any order.

    Raises:
        AudioNotStored: there is no room on the disk.
    """

    def __init__(self) -> None:
        super().__init__()
        try:
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed by abandon()
        except OSError as error:
            raise AudioNotStored from error
        self._num_bytes = 0
        self._num_read = 0

    @property
    def is_full(self) -> bool:
        """Never: the disk is larger than what may come."""
        return False

    @property
    def is_drained(self) -> bool:
        """See `Spool`."""
        return self._num_read == self._num_bytes and not self._is_ended

    def put(self, chunk: bytes) -> None:
        """See `Spool`.

        Raises:
            AudioNotStored: there is no room on the disk.
        """
        rest = memoryview(chunk)
        with self._changed:
            while rest and not self._file.closed:
                try:
                    written = os.pwrite(self._file.fileno(), rest, self._num_bytes)
                except OSError as error:
                    raise AudioNotStored from error
                self._num_bytes += written
                rest = rest[written:]
            self._changed.notify()

    def read(self, size: int) -> bytes:
        """See `Spool`."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_ended or self._num_read < self._num_bytes)
            chunk = self._at(self._num_read, size)
            self._num_read += len(chunk)
            return chunk

    def whole(self) -> WholeFile:
        """Wait for the end, and return the file to be read in any order."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_ended)
            return WholeFile(self._at, self._num_bytes)

    def _free(self) -> None:
        self._file.close()

    def _at(self, place: int, size: int) -> bytes:
        return b"" if self._file.closed else os.pread(self._file.fileno(), size, place)


class WholeFile:
    """The face of a file that can seek.

    Args:
        at: returns bytes at a place, of a size at most.
        num_bytes: of the file.
    """

    def __init__(self, at: Callable[[int, int], bytes], num_bytes: int) -> None:
        self._at = at
        self._num_bytes = num_bytes
        self._place = 0

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes; none at the end."""
        chunk = self._at(self._place, size)
        self._place += len(chunk)
        return chunk

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a place, and return it."""
        # The library may add a flag of its own, which says no more than that it means it.
        origin = {os.SEEK_CUR: self._place, os.SEEK_END: self._num_bytes}.get(whence & 3, 0)
        self._place = max(origin + offset, 0)
        return self._place

    def tell(self) -> int:
        """Return the place."""
        return self._place
