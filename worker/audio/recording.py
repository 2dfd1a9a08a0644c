"""The samples of one channel on their way from decoder to model: in memory, and in a file when there are many."""

from __future__ import annotations

import os
import tempfile
import threading
from typing import IO

import numpy as np

from worker.audio.errors import AudioNotStored
from worker.audio.pcm import Floats

MEMORY_BYTES = 8 << 20
_BLOCK_SAMPLES = 16_384  # a good second
_BLOCK_BYTES = _BLOCK_SAMPLES * 4


class Recording:
    """Floats of one channel, 16,000 a second; one thread appends while another reads.

    Samples lie in blocks. A block that is not there is silence: it was skipped, forgotten, or the recording is closed;
    so a reader that is late hears nothing and does no harm.

    Args:
        memory_bytes: what may be held in memory; blocks beyond lie in a file without a name, which is gone when the
            process is.
    """

    def __init__(self, memory_bytes: int = MEMORY_BYTES) -> None:
        self._max_blocks = memory_bytes // _BLOCK_BYTES
        self._lock = threading.Lock()
        self._blocks: dict[int, Floats] = {}
        self._filed: dict[int, int] = {}  # block -> its place in the file, counted in blocks
        self._free: list[int] = []
        self._num_places = 0
        self._file: IO[bytes] | None = None
        self._num_samples = 0
        self._is_complete = False
        self._is_closed = False
        self._error: Exception | None = None

    @property
    def num_samples(self) -> int:
        """Samples that came so far, skipped and forgotten ones too."""
        return self._num_samples

    @property
    def is_complete(self) -> bool:
        """Whether no more samples come."""
        return self._is_complete

    @property
    def error(self) -> Exception | None:
        """Why no more samples come, where that is a failure."""
        return self._error

    @property
    def memory_bytes(self) -> int:
        """Bytes held in memory."""
        return len(self._blocks) * _BLOCK_BYTES

    @property
    def file_bytes(self) -> int:
        """Bytes that the file has grown to."""
        return self._num_places * _BLOCK_BYTES

    def append(self, samples: Floats) -> None:
        """Add samples at the end; nothing once the recording is closed or complete.

        Args:
            samples: float32 [S].

        Raises:
            AudioNotStored: there is no room on the disk.
        """
        done = 0
        while done < len(samples):
            with self._lock:
                if self._is_closed or self._is_complete:
                    return
                done += self._fill(samples[done:])

    def skip(self, num_samples: int) -> None:
        """Add silence at the end, which takes no room."""
        with self._lock:
            if self._is_closed or self._is_complete:
                return
            self._settle(self._num_samples + num_samples)

    def end(self, error: Exception | None = None) -> None:
        """Say that no more samples come.

        Args:
            error: why, where that is a failure.
        """
        with self._lock:
            if not self._is_complete:
                self._error = error
                self._is_complete = True

    def read(self, start: int, stop: int) -> Floats:
        """Return samples from one place up to another, or up to the last that came.

        Returns:
            float32 [S], the caller's own.
        """
        stop = min(stop, self._num_samples)
        samples = np.zeros(max(stop - start, 0), np.float32)
        place = start
        while place < stop:
            block, offset = divmod(place, _BLOCK_SAMPLES)
            taken = min(_BLOCK_SAMPLES - offset, stop - place)
            # Held for a block only: the writer may be the event loop.
            with self._lock:
                found = self._block(block)
                if found is not None:
                    samples[place - start : place - start + taken] = found[offset : offset + taken]
            place += taken
        return samples

    def forget(self, before: int) -> None:
        """Give back the room of samples before a place; they are silence from then on, or stay for a second."""
        with self._lock:
            first = min(before, self._num_samples) // _BLOCK_SAMPLES
            for block in [block for block in self._blocks if block < first]:
                del self._blocks[block]
            for block in [block for block in self._filed if block < first]:
                self._free.append(self._filed.pop(block))

    def close(self) -> None:
        """Free memory and file; what is appended later is dropped."""
        with self._lock:
            self._is_closed = True
            self._blocks.clear()
            self._filed.clear()
            self._free.clear()
            self._num_places = 0
            if self._file is not None:
                self._file.close()
                self._file = None

    def _fill(self, samples: Floats) -> int:
        """Put samples into the last block as far as they fit, and return how many."""
        block, offset = divmod(self._num_samples, _BLOCK_SAMPLES)
        taken = min(_BLOCK_SAMPLES - offset, len(samples))
        held = self._blocks.get(block)
        if held is None:
            held = self._blocks[block] = np.zeros(_BLOCK_SAMPLES, np.float32)
        held[offset : offset + taken] = samples[:taken]
        self._settle(self._num_samples + taken)
        return taken

    def _settle(self, num_samples: int) -> None:
        """Go on to a place, and move the block behind to the file where memory is short."""
        last = self._num_samples // _BLOCK_SAMPLES
        if num_samples // _BLOCK_SAMPLES > last and last in self._blocks and len(self._blocks) > self._max_blocks:
            self._store(last)
        self._num_samples = num_samples

    def _store(self, block: int) -> None:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed by close()
            place = self._free[-1] if self._free else self._num_places
            _write(self._file.fileno(), self._blocks[block].tobytes(), place * _BLOCK_BYTES)
        except OSError as error:
            raise AudioNotStored from error
        if self._free:
            self._free.pop()
        else:
            self._num_places += 1
        self._filed[block] = place
        del self._blocks[block]

    def _block(self, block: int) -> Floats | None:
        place = self._filed.get(block)
        if place is None or self._file is None:
            return self._blocks.get(block)
        return np.frombuffer(os.pread(self._file.fileno(), _BLOCK_BYTES, place * _BLOCK_BYTES), np.float32)


def _write(descriptor: int, content: bytes, place: int) -> None:
    while content:
        written = os.pwrite(descriptor, content, place)
        content = content[written:]
        place += written
