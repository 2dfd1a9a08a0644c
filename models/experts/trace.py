"""Writes down which experts tokens are given to, for `pomona expert-trace` to sum up; plain Python.

One object a line, JSON. The first has `meta`, the format's name, and a note. Each of the others is what the router of
one layer chose in one step: `c`, its number among all; `l`, the layer; `s`, the shape [1, N, k] of the choice: N tokens
with k experts each; `i`, the N * k ids of the experts, row by row. Source: the reference system, whose files can be
read as well.

Writing down needs the ids on the host, so a model that is traced waits for every router and is slower. Every line is
given to the system as soon as it is there: a trace can be read while its model runs, and outlives a killed worker.
"""

from __future__ import annotations

import errno
import json
import logging
import os
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, TextIO

from models.experts.errors import TraceUnwritable

META = "mlx-bun-expert-trace-v1"
NOTE = "one record per router call"
# Tokens of 48 layers with 8 experts each take about 2.5 kB, so this is some 400,000 of them.
MAX_BYTES = 1 << 30

_log = logging.getLogger(__name__)


class Choice(Protocol):
    """Ids of experts, an array [1, N, k]."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its lengths."""
        ...

    def tolist(self) -> Any:
        """Return nested lists of numbers, waiting for them where they are not computed yet."""
        ...


class ExpertTrace:
    """A trace that is being written; belongs to the engine's thread.

    The disk cannot fail a request: where it is full, or the trace has grown to `max_bytes`, the trace ends and the log
    says so.

    Args:
        file: is written anew.
        max_bytes: where the trace ends.

    Raises:
        TraceUnwritable: it cannot be made.
    """

    def __init__(self, file: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self._file = file
        self._max_bytes = max_bytes
        self._num_bytes = self._num_records = 0
        try:
            descriptor = _opened(file)
        except OSError as error:
            raise TraceUnwritable(error) from error
        self._stream: TextIO | None = os.fdopen(descriptor, "w", buffering=1, encoding="ascii")
        self._write({"meta": META, "note": NOTE})

    def observe(self, layer: int, indices: Choice) -> None:
        """Write down what the router of a layer chose.

        Args:
            layer: from 0.
            indices: integers [1, N, k].
        """
        if self._stream is None:
            return
        rows = indices.tolist()
        ids = list(chain.from_iterable(chain.from_iterable(rows)))
        self._write({"c": self._num_records, "l": layer, "s": list(indices.shape), "i": ids})
        self._num_records += 1

    def close(self) -> None:
        """End it; a second call does nothing."""
        stream, self._stream = self._stream, None
        if stream is not None:
            try:
                stream.close()
            except OSError as error:
                _log.warning("the trace of experts was not closed: %s", error.strerror)

    def _write(self, record: dict[str, Any]) -> None:
        if self._stream is None:
            return
        line = json.dumps(record, separators=(",", ":")) + "\n"
        self._num_bytes += len(line)
        if self._num_bytes > self._max_bytes:
            _log.warning("the trace of experts ends here: it has %d bytes", self._max_bytes)
            self.close()
            return
        try:
            self._stream.write(line)
        except OSError as error:
            _log.warning("the trace of experts ends here: %s", error.strerror)
            self.close()


def _opened(file: Path) -> int:
    """Open a file to be written anew, and wait for nobody: a pipe, which needs a reader, is refused.

    Raises:
        OSError: it cannot be written.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK
    if file.is_fifo():
        raise OSError(errno.ESPIPE, "it is a pipe")
    descriptor = os.open(file, flags, 0o600)
    os.set_blocking(descriptor, True)
    return descriptor
