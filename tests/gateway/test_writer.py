"""One task does what it is given, in its order."""

import asyncio

import pytest

from gateway.writer import Writer


async def test_things_are_done_in_their_order_and_what_follows_after_each() -> None:
    done: list[str] = []
    writer = Writer(lambda: done.append("then"))
    writer.start()
    writer.post(lambda: done.append("a"))
    await writer.submit(lambda: done.append("b"))
    assert done == ["a", "then", "b", "then"]
    await writer.stop()
    assert not writer.is_running


async def test_nobody_waits_for_a_writer_that_does_not_run() -> None:
    writer = Writer(lambda: None)
    await writer.submit(lambda: None)
    writer.start()
    waiting = asyncio.create_task(writer.submit(lambda: None))
    await asyncio.sleep(0)
    await writer.stop()
    await asyncio.wait_for(waiting, 10)


async def test_who_waits_for_a_writer_that_breaks_is_told() -> None:
    def broken() -> None:
        raise ZeroDivisionError

    writer = Writer(lambda: None)
    writer.start()
    with pytest.raises(ZeroDivisionError):
        await writer.submit(broken)
    assert not writer.is_running
    await writer.stop()
