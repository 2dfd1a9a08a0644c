"""How much a workload of speech takes on at once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SpeechBounds:
    """Bounds of a workload.

    Attributes:
        max_windows: that may be open at once, unless they take too much memory.
        max_window_bytes: of memory that open windows may take together; one may always be open.
        max_new_windows: that one pass of the encoder hears.
        max_queue_requests: requests beside those that have a window.
    """

    max_windows: int = 16
    max_window_bytes: int = 4 << 30
    max_new_windows: int = 1
    max_queue_requests: int = 64

    def fitting(self, window_bytes: int) -> int:
        """Return how many windows of this size may be open at once."""
        return max(1, min(self.max_windows, self.max_window_bytes // window_bytes))
