"""Where audio comes from: a file, or standard input."""

import io
import os
import stat
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gateway.cli.failures import CliError

STANDARD_INPUT = Path("-")


class UnreadableAudio(CliError):
    """Raised when there is nothing to read; its text goes behind the name of the file."""

    code = "INVALID_ARGUMENT"
    reason = "AUDIO_UNREADABLE"


@dataclass(frozen=True, slots=True)
class AudioSource:
    """Bytes that are read as they come; `size` is None where only the end will tell.

    `file` is unbuffered: a thread may sit in a read when the command ends, and must hold no lock of the library then.
    """

    file: io.FileIO
    size: int | None

    def chunks(self, chunk_bytes: int, frame_bytes: int = 1) -> Iterator[bytes]:
        """Yield what there is until the end, in whole frames; part of a frame at the end is dropped.

        A pipe is not waited for until a chunk is full: what is there is given.

        Raises:
            UnreadableAudio: reading failed.
        """
        rest = b""
        while read := self._read(max(chunk_bytes, frame_bytes) - len(rest)):
            held = rest + read
            whole = len(held) - len(held) % frame_bytes
            rest = held[whole:]
            if whole:
                yield held[:whole]

    def _read(self, num_bytes: int) -> bytes:
        try:
            return self.file.read(num_bytes) or b""
        except OSError as error:
            raise UnreadableAudio(f"reading broke off: {error.strerror}") from error
        except ValueError:  # it was closed: nobody wants more of it
            return b""


@contextmanager
def open_audio(path: Path) -> Generator[AudioSource]:
    """Open a file, or standard input for `-`, for the length of the block.

    Raises:
        UnreadableAudio: it cannot be read, is a folder, or is empty.
    """
    if path == STANDARD_INPUT:
        if sys.stdin.isatty():
            raise UnreadableAudio("this is a terminal: pipe audio into the command, or name a file")
        yield _source(io.FileIO(sys.stdin.fileno(), closefd=False))
        return
    try:
        file = io.FileIO(path)
    except IsADirectoryError:
        raise UnreadableAudio("is a folder; name the files in it") from None
    except (OSError, ValueError) as error:
        raise UnreadableAudio(f"cannot be read: {getattr(error, 'strerror', None) or error}") from error
    with file:
        source = _source(file)
        if source.size == 0:
            raise UnreadableAudio("is empty")
        yield source


def check_audio(path: Path) -> None:
    """See whether there is something to read; what can be opened once only is left alone.

    Raises:
        UnreadableAudio: there is not.
    """
    if not path.is_fifo():
        with open_audio(path):
            pass


def shown_name(path: Path) -> str:
    """Return a file's name as given, in characters that can be printed."""
    return "standard input" if path == STANDARD_INPUT else os.fsencode(path).decode("utf-8", "replace")


def _source(file: io.FileIO) -> AudioSource:
    facts = os.fstat(file.fileno())
    return AudioSource(file, facts.st_size if stat.S_ISREG(facts.st_mode) else None)
