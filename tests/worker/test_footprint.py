"""The footprint follows what the process holds."""

import asyncio
import sys

import pytest

from tests.support.waiting import eventually
from worker.footprint import FootprintGauge, footprint_bytes

HELD_BYTES = 64 << 20


@pytest.mark.skipif(sys.platform not in {"linux", "darwin"}, reason="nothing is measured elsewhere")
def test_the_footprint_grows_with_what_is_held() -> None:
    before = footprint_bytes()
    held = bytearray(b"x") * HELD_BYTES
    after = footprint_bytes()
    assert before is not None
    assert after is not None
    assert 0.9 * len(held) < after - before < 2 * len(held)


async def test_the_gauge_measures_beside_the_event_loop() -> None:
    gauge = FootprintGauge()
    task = asyncio.create_task(gauge.run())
    await eventually(lambda: gauge.bytes > 0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
