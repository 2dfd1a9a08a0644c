"""The footprint follows what the process holds."""

import asyncio
import subprocess
import sys

import pytest

from tests.support.waiting import eventually
from worker.footprint import FootprintGauge

HELD_BYTES = 64 << 20
MEASURE = f"""
from worker.footprint import footprint_bytes
before = footprint_bytes()
held = bytearray(b"x") * {HELD_BYTES}
print(footprint_bytes() - before)
"""
# Run in a process of its own: in one that has lived, memory that others gave back is used first.


@pytest.mark.skipif(sys.platform not in {"linux", "darwin"}, reason="nothing is measured elsewhere")
def test_the_footprint_grows_with_what_is_held() -> None:
    ran = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True, timeout=60)
    assert 0.9 * HELD_BYTES < int(ran.stdout) < 2 * HELD_BYTES


async def test_the_gauge_measures_beside_the_event_loop() -> None:
    gauge = FootprintGauge()
    task = asyncio.create_task(gauge.run())
    await eventually(lambda: gauge.bytes > 0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
