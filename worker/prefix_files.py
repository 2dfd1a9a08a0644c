"""How one block of a prefix is kept in a file: its name, its bytes, and how damage shows.

A file is a header (magic, version, what its bytes depend on, its name, the ids of its tokens, the size of the rest), a
CRC of all else, and the block as its cache wrote it. The CRC is against accidents, not against people: the folder is
closed to others. It was chosen for its speed, since blocks are read between two steps: 6.6 GB/s here, BLAKE2b 1.4.
"""

import hashlib
import os
import stat
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from models.blocks import BLOCK_TOKENS

MAGIC = b"POMONAKV"
FORMAT_VERSION = 1
MAX_FILE_BYTES = 256 << 20

_HEADER = struct.Struct(f"<8sI32s32s{BLOCK_TOKENS}qQ")
_CHECKSUM = struct.Struct("<I")
_TOKENS = struct.Struct(f"<{BLOCK_TOKENS}q")
HEADER_BYTES = _HEADER.size + _CHECKSUM.size


class DamagedBlockError(ValueError):
    """Raised when a file does not hold the block that its name stands for."""


class BlockFormat:
    """Names and bytes of the blocks whose numbers depend on the same things.

    Args:
        fingerprint: all that decides whether one cache can read another's bytes: the checkpoint's revision, dtype,
            numeric path, scheme of keys and values.
    """

    def __init__(self, fingerprint: str) -> None:
        self._fingerprint = _digest(struct.pack("<II", FORMAT_VERSION, BLOCK_TOKENS), _text(fingerprint))

    @property
    def folder_name(self) -> str:
        """32 hexadecimal digits, others for another version of the format or another fingerprint."""
        return self._fingerprint.hex()[:32]

    def root(self, namespace: str) -> bytes:
        """Return the name of no tokens in a namespace, 32 bytes."""
        return _digest(self._fingerprint, _text(namespace))

    def child(self, parent: bytes, token_ids: Sequence[int]) -> bytes:
        """Return the name of the block that follows another: a hash of all tokens up to its end, 32 bytes."""
        return _digest(parent, _TOKENS.pack(*token_ids))

    def head(self, name: bytes, token_ids: Sequence[int], payload: bytes) -> bytes:
        """Return what stands before the payload in its file."""
        header = self._header(name, token_ids, len(payload))
        return header + _CHECKSUM.pack(zlib.crc32(payload, zlib.crc32(header)))

    def read(
        self, stream: BinaryIO, name: bytes, token_ids: Sequence[int], has_room: Callable[[int], bool]
    ) -> bytes | None:
        """Return the payload of an open file, or None if `has_room` says no to its size in bytes.

        Raises:
            DamagedBlockError: it is another block, of another size than it says, or its checksum is wrong.
            OSError: it cannot be read.
        """
        num_bytes = os.fstat(stream.fileno()).st_size - HEADER_BYTES
        if not 0 <= num_bytes <= MAX_FILE_BYTES - HEADER_BYTES:
            raise DamagedBlockError("no size of a block")
        header = stream.read(_HEADER.size)
        if header != self._header(name, token_ids, num_bytes):
            raise DamagedBlockError("another block's header")
        if not has_room(num_bytes):
            return None
        checksum = stream.read(_CHECKSUM.size)
        payload = stream.read(num_bytes)
        if len(payload) != num_bytes or checksum != _CHECKSUM.pack(zlib.crc32(payload, zlib.crc32(header))):
            raise DamagedBlockError("wrong checksum")
        return payload

    def _header(self, name: bytes, token_ids: Sequence[int], num_bytes: int) -> bytes:
        return _HEADER.pack(MAGIC, FORMAT_VERSION, self._fingerprint, name, *token_ids, num_bytes)


def open_block(path: Path) -> BinaryIO:
    """Open a file to read it.

    Raises:
        DamagedBlockError: there is something else than a file.
        OSError: it is not there or cannot be opened.
    """
    # Without O_NONBLOCK opening a named pipe would wait for its writer.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise DamagedBlockError("no file")
    return os.fdopen(fd, "rb")


def _text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _digest(*parts: bytes) -> bytes:
    # Each part but the last has a fixed size, so no two lists of parts give the same bytes.
    return hashlib.blake2b(b"".join(parts), digest_size=32, person=b"pomona prefix").digest()
