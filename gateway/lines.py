"""Cuts the bytes of a pipe into lines of bounded length."""

from collections.abc import Iterator

MAX_LINE_BYTES = 4096


class LineCutter:
    """Holds the bytes of a line that has not ended yet.

    A line longer than `MAX_LINE_BYTES` is given once, cut off there; the rest of it is dropped.
    """

    def __init__(self) -> None:
        self._open = bytearray()
        self._is_cut = False

    def feed(self, data: bytes) -> Iterator[str]:
        """Give each line that `data` ends, without its line end."""
        *ended, rest = data.split(b"\n")
        for part in ended:
            self._open += part
            yield from self.flush()
            self._is_cut = False
        self._open += rest
        if len(self._open) > MAX_LINE_BYTES:
            yield from self.flush()
            self._is_cut = True

    def flush(self) -> Iterator[str]:
        """Give the line that has not ended, if there is one."""
        line = bytes(self._open[:MAX_LINE_BYTES]).rstrip(b"\r")
        self._open.clear()
        if line and not self._is_cut:
            yield line.decode("utf-8", "replace")
