"""Where audio for a transcript comes from."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

CHUNK_BYTES = 64 * 1024
MAX_CHUNK_BYTES = 1024 * 1024

Audio = str | Path | bytes | Iterable[bytes]


def chunks(audio: Audio, preferred_bytes: int = 0) -> Iterator[bytes]:
    """Yield a file (named by a path), bytes, or chunks that come by themselves, in messages that the server takes.

    Raises:
        OSError: the file cannot be read.
    """
    size = min(preferred_bytes, MAX_CHUNK_BYTES) or CHUNK_BYTES
    if isinstance(audio, str | Path | bytes):
        with _opened(audio) as file:
            while chunk := file.read(size):
                yield chunk
    else:
        for piece in audio:
            yield from (piece[start : start + MAX_CHUNK_BYTES] for start in range(0, len(piece), MAX_CHUNK_BYTES))


def _opened(audio: str | Path | bytes) -> AbstractContextManager[BinaryIO]:
    return nullcontext(BytesIO(audio)) if isinstance(audio, bytes) else Path(audio).open("rb")
