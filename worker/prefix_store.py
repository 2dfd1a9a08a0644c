"""The prefix cache's tier on disk: blocks outlive their process there.

A block is written when it enters memory, so that what a kill leaves behind is what was computed until then. Its bytes
are copied out of the cache on the caller's thread, since only that one may touch the device; the file is written on
another, behind a bounded queue. When the queue is full the block is not taken, and the cache offers it again when there
is room. Blocks are read on the caller's thread, which needs them at once.

A disk that is full or may not be written stops the writing for a minute, with one line in the log. What could not be
written meanwhile is offered again when it is used after that.
"""

import contextlib
import errno
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from models.blocks import Part
from worker.prefix_files import HEADER_BYTES, MAX_FILE_BYTES, BlockFormat, open_block
from worker.prefix_folder import PrefixFolder
from worker.prefix_writer import BackgroundWriter

MAX_WAITING_BYTES = 128 << 20
PAUSE_S = 60.0

# What this process lacks says nothing about the file.
_OUR_FAULT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PartCodec:
    """How a cache turns its parts into bytes and back.

    Attributes:
        fingerprint: only caches of an equal one read each other's bytes: the checkpoint's revision, dtype, numeric path
            and scheme of keys and values.
        write: bytes of a part; called on the thread that offers it.
        read: the part of such bytes, None without room for it now. Raises ValueError for bytes that are none of its.
    """

    fingerprint: str
    write: Callable[[Part], bytes]
    read: Callable[[bytes], Part | None]


@dataclass(slots=True)
class StoreCounters:
    """How often what happened to a block, since the start.

    Attributes:
        num_read: from the disk.
        num_written: to the disk.
        num_refused: offered while the queue was full or writing was off.
        num_damaged: found unreadable, and deleted.
    """

    num_read: int = 0
    num_written: int = 0
    num_refused: int = 0
    num_damaged: int = 0


@dataclass(slots=True)
class Write:
    """A block on its way to the disk, or there.

    Attributes:
        has_failed: it did not get there; set by the thread that writes.
    """

    has_failed: bool = False


class PrefixStore:
    """Blocks in files, found by the tokens of their whole prefix.

    `put`, `get` and `touch` never fail and, but for reading, never wait for the disk.

    Args:
        folder: shared with other workers; see `worker.prefix_folder`.
        max_bytes: cap of all files in it.
        codec: of the cache whose parts these are.
        max_waiting_bytes: memory for blocks that are not yet written.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        folder: Path,
        max_bytes: int,
        codec: PartCodec,
        *,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._codec = codec
        self._format = BlockFormat(codec.fingerprint)
        self._folder = PrefixFolder(folder, self._format.folder_name, max_bytes)
        self._max_bytes = max_bytes
        self._clock = clock
        self._paused_until: float | None = None
        self._is_trusted = False
        self._writer = BackgroundWriter(max_waiting_bytes)
        self.counters = StoreCounters()
        self._try(self._open)
        self._writer.add(self._tidy)

    @property
    def nbytes(self) -> int:
        """Bytes of all files in the folder, as last counted."""
        return self._folder.nbytes

    def holds(self, num_blocks: int, num_bytes: int) -> bool:
        """Say whether so many blocks of one sequence can be there together.

        An eighth of the cap is left free: a write that makes room takes a sixteenth at once, and a part may have a few
        bytes more in its file than in memory.
        """
        return num_bytes + num_blocks * HEADER_BYTES <= self._max_bytes - self._max_bytes // 8

    def root(self, namespace: str) -> bytes:
        """Return the name of no tokens in a namespace."""
        return self._format.root(namespace)

    def child(self, parent: bytes, token_ids: Sequence[int]) -> bytes:
        """Return the name of a block of tokens after the block or root of name `parent`."""
        return self._format.child(parent, token_ids)

    def put(self, name: bytes, token_ids: Sequence[int], part: Part) -> Write | None:
        """Have a block written some time; None: it was not taken."""
        write: Write | None = None
        if self._is_writing() and self._writer.has_room(part.nbytes):
            payload, tokens, write = self._codec.write(part), tuple(token_ids), Write()
            job = partial(self._write, name, tokens, payload, write)
            if not self._writer.add(job, len(payload)):
                write = None
        self.counters.num_refused += write is None
        return write

    def could_put(self, num_bytes: int) -> bool:
        """Say whether a block of so many bytes would be taken now, or soon without anything but waiting."""
        return self._is_writing() and self._writer.could_take(num_bytes)

    def wait_for_room(self, timeout_s: float) -> None:
        """Wait until there is room for more blocks to write."""
        self._writer.wait_for_room(timeout_s)

    def get(self, name: bytes, token_ids: Sequence[int], has_room: Callable[[int], bool]) -> Part | None:
        """Read a block back.

        Args:
            name: of the block.
            token_ids: of the block, which must be those in the file.
            has_room: asked with the bytes of the block before they are read.

        Returns:
            None if there is none, it is damaged (then it is deleted), or there is no room for it.
        """
        path = self._folder.path(name)
        if not self._is_trusted:
            return None
        try:
            part = self._read(path, name, token_ids, has_room)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self._discard(path, error)
            return None
        self.counters.num_read += part is not None
        return part

    def touch(self, names: Sequence[bytes]) -> None:
        """Mark the blocks of one sequence, given from its start, as used now."""
        kept = tuple(names)
        self._writer.add(lambda: self._folder.touch(kept))

    def drain(self, timeout_s: float) -> bool:
        """Wait until what was put is written; return whether it is."""
        return self._writer.drain(timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Take no more blocks, and wait until what was put is written; return whether it is."""
        return self._writer.close(timeout_s)

    def _open(self) -> None:
        try:
            self._folder.create()
        except OSError:
            self._is_trusted = False
            raise
        self._is_trusted = True

    def _tidy(self) -> None:
        self._try(self._folder.tidy)

    def _is_writing(self) -> bool:
        return self._paused_until is None or self._clock() >= self._paused_until

    def _write(self, name: bytes, token_ids: Sequence[int], payload: bytes, write: Write) -> None:
        if len(payload) + HEADER_BYTES > MAX_FILE_BYTES:
            return
        pieces = [self._format.head(name, token_ids, payload), payload]
        write.has_failed = not (self._is_writing() and self._try(lambda: self._add_file(name, pieces)))

    def _add_file(self, name: bytes, pieces: Sequence[bytes]) -> None:
        self._open()
        self.counters.num_written += self._folder.write(name, pieces)
        if self._paused_until is not None:
            self._paused_until = None
            _log.info("the prefix cache's disk is written again")

    def _try(self, action: Callable[[], None]) -> bool:
        try:
            action()
        except OSError as error:
            if self._paused_until is None:
                reason = errno.errorcode.get(error.errno or 0, type(error).__name__)
                _log.warning(
                    "prefix_cache_folder cannot be used; the prefix cache goes on without it", extra={"reason": reason}
                )
            self._paused_until = self._clock() + PAUSE_S
            return False
        return True

    def _read(self, path: Path, name: bytes, token_ids: Sequence[int], has_room: Callable[[int], bool]) -> Part | None:
        with open_block(path) as stream:
            payload = self._format.read(stream, name, token_ids, has_room)
        return None if payload is None else self._codec.read(payload)

    def _discard(self, path: Path, error: Exception) -> None:
        if isinstance(error, OSError) and error.errno in _OUR_FAULT:
            return
        self.counters.num_damaged += 1
        _log.warning("deleted a damaged block of the prefix cache", extra={"reason": type(error).__name__})
        with contextlib.suppress(OSError):
            path.unlink()
