"""When an interim hearing is due, in samples of audio that came: a machine that is late does less. Plain Python.

In real time a sample that comes is time that passes; where audio comes faster, there is only less of it to be heard
while it is spoken.
"""

from __future__ import annotations

_RATE_HZ = 16_000
_REST_SHARE = 0.5
_SLOW = _RATE_HZ // 2  # a final that waits for an interim that takes longer comes too late
_SLOW_REST_SHARE = 2.0  # of what it takes beyond that


class Pace:
    """Spaces the interim hearings of one channel.

    After a hearing the machine rests for half as long as that took, so that one stream never takes all of it. Where a
    hearing is slow it rests much longer: interims become rare before finals, which may have to wait for one, come late.

    Args:
        interval: samples between two interims that are told.
    """

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._began = 0
        self._next_start = 0
        self._next_told = 0

    def may_start(self, received: int) -> bool:
        """Whether another interim may be heard, now that so many samples came."""
        return received >= self._next_start

    def may_tell(self, received: int) -> bool:
        """Whether an interim may be told."""
        return received >= self._next_told

    def start(self, received: int) -> None:
        """Note that a hearing is wanted."""
        self._began = received
        self._next_start = received + self._interval

    def end(self, received: int) -> None:
        """Note that the hearing is done."""
        took = received - self._began
        rest = _REST_SHARE * took + _SLOW_REST_SHARE * max(0, took - _SLOW)
        self._next_start = max(self._next_start, received + round(rest))

    def tell(self, received: int) -> None:
        """Note that an interim was told."""
        self._next_told = received + self._interval
