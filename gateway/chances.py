"""What differs from run to run, and tests therefore replace."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.pressure import Read, read_system


@dataclass(frozen=True, slots=True)
class Chances:
    """The clock, the dice, and what is measured of memory.

    Attributes:
        now: monotonic time in seconds.
        dice: gives the jitter of pauses.
        read: measures memory.
        sample_s: how often it is measured, in seconds.
    """

    now: Callable[[], float] = time.monotonic
    dice: random.Random = field(default_factory=random.Random)
    read: Read = read_system
    sample_s: float = 1.0
