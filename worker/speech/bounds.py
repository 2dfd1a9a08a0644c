"""How much a workload of speech takes on at once; plain Python."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class SpeechBounds:
    """Bounds of a workload. A row is a text of an open window: with beams, or the best of several, a window has more.

    Attributes:
        max_rows: at once, unless they take too much memory.
        max_bytes: of memory that rows may take together; there may always be one.
        max_new_windows: that one pass of the encoder hears.
        max_queue_requests: requests beside those that have a window.
    """

    max_rows: int = 16
    max_bytes: int = DEFAULT_BYTES
    max_new_windows: int = 1
    max_queue_requests: int = 64

    def fitting(self, row_bytes: int) -> int:
        """Return how many rows of this size there may be at once."""
        return max(1, min(self.max_rows, self.max_bytes // row_bytes))
