"""How urgent the work is for which a worker wants a device that it shares."""

from enum import IntEnum


class Claim(IntEnum):
    """How urgent the work of the next tick is; the numbers are those of the wire."""

    LIVE = 0
    """Somebody listens while it is spoken."""
    STEADY = 1
    """A stream is running, or the work is short."""
    BULK = 2
    """Prompts, batches."""
