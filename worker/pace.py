"""How much of a prompt may be computed between two steps of running rows; plain Python.

A chunk of fixed length takes ever longer as its prompt grows, and so would the gap between two tokens of everyone else.
So while others decode, chunks are cut to what was computed lately in the time that they may wait.
"""

MIN_TOKENS = 32
# Before anything was measured.
FIRST_TOKENS = 128
# Of a burst, while other processes wait for the device: a few more rows of a matrix cost little.
MIN_BURST_TOKENS = 8
FIRST_BURST_TOKENS = 32
# How much the last chunk counts against those before it.
NEWEST_SHARE = 0.5


class Pace:
    """Turns a time into tokens of a prompt.

    Args:
        gap_s: how long prompts may hold up running rows.
    """

    def __init__(self, gap_s: float) -> None:
        self._gap_s = gap_s
        self._tokens_per_second: float | None = None

    @property
    def tokens(self) -> int:
        """How many tokens of prompts fit; at least 32, so that prompts move whatever the machine."""
        if self._tokens_per_second is None:
            return FIRST_TOKENS
        return max(MIN_TOKENS, int(self._tokens_per_second * self._gap_s))

    def tokens_within(self, seconds: float) -> int:
        """Return how many tokens fit into a burst, while other processes wait for the device; at least 8."""
        if self._tokens_per_second is None:
            return FIRST_BURST_TOKENS
        return max(MIN_BURST_TOKENS, int(self._tokens_per_second * seconds))

    def note(self, num_tokens: int, seconds: float) -> None:
        """Take how long a step of prompt tokens took."""
        newest = num_tokens / max(seconds, 1e-6)
        before = newest if self._tokens_per_second is None else self._tokens_per_second
        self._tokens_per_second = NEWEST_SHARE * newest + (1 - NEWEST_SHARE) * before
