"""Where a caller wants its utterances ended, between event loop and engine."""

from __future__ import annotations

import asyncio
import threading

from tests.support.waiting import eventually
from worker.speech.finalizations import MAX_WAITING, Finalizations


def test_they_are_taken_once_in_order() -> None:
    places = Finalizations()
    for place in (0.5, 1.0, 1.5):
        places.add(place)
    assert places.take() == [0.5, 1.0, 1.5]
    assert places.take() == []


def test_another_where_the_last_was_is_none() -> None:
    places = Finalizations()
    for _ in range(100_000):
        places.add(2.0)
    assert places.take() == [2.0]
    places.add(2.0)
    assert places.take() == []
    places.add(2.1)
    assert places.take() == [2.1]


async def test_who_sends_more_than_are_taken_waits() -> None:
    places = Finalizations()
    sent = 0

    async def send() -> None:
        nonlocal sent
        for number in range(3 * MAX_WAITING):
            places.add(float(number))
            sent += 1
            await places.room()

    sending = asyncio.create_task(send())
    for rounds in (1, 2, 3):
        await eventually(lambda full=rounds * MAX_WAITING: sent >= full)
        assert (sent, sending.done()) == (rounds * MAX_WAITING, False)
        taken: list[float] = []
        engine = threading.Thread(target=lambda taken=taken: taken.extend(places.take()))
        engine.start()
        engine.join()
        assert len(taken) == MAX_WAITING
    await asyncio.wait_for(sending, 5)


async def test_a_loop_that_is_gone_is_no_trouble() -> None:
    places = Finalizations()

    async def send() -> None:
        places.add(1.0)
        await places.room()

    await asyncio.to_thread(asyncio.run, send())
    assert places.take() == [1.0]
