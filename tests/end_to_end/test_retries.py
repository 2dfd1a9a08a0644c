"""A few rounds of `bench/retries.py`: workers die under requests, with each mechanism on and off."""

import random
from pathlib import Path

from tests.support.retry_rounds import lost, lost_wrongs, poisoned, poisoned_wrongs


async def test_requests_that_had_not_begun_are_served_by_the_next_worker(tmp_path: Path) -> None:
    on = await lost(tmp_path / "on", 2, random.Random(1), is_on=True)
    off = await lost(tmp_path / "off", 1, random.Random(1), is_on=False)
    assert not lost_wrongs(on)
    assert on.ends["OK"] > 0
    assert lost_wrongs(off)
    assert off.ends["WORKER_RESTARTING"] > 0


async def test_one_request_takes_two_workers_and_no_more(tmp_path: Path) -> None:
    on = await poisoned(tmp_path / "on", 4, is_on=True)
    off = await poisoned(tmp_path / "off", 3, is_on=False)
    assert not poisoned_wrongs(on)
    assert (on.ends["OK"], on.deaths) == (4, 2)
    assert on.ends["REQUEST_QUARANTINED"] >= 2  # more where the second attempt met the second death
    assert poisoned_wrongs(off)
    assert (off.ends["OK"], off.ends["REQUEST_QUARANTINED"]) == (3, 0)
