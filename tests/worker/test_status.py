"""The worker's state moves one way, and its watchers learn of it."""

import asyncio

import pytest
from pomona.v1 import common_pb2, model_pb2

from worker.status import State, Status, StatusOrderError


async def test_a_worker_goes_from_loading_to_its_end() -> None:
    status = Status()
    status.activate(model_pb2.Model(model="m"))
    assert status.model is not None
    status.drain()
    status.drain()
    status.end()
    status.end()
    assert status.state is State.ENDED


async def test_a_state_cannot_be_left_backwards() -> None:
    status = Status()
    status.fail(common_pb2.Failure(reason="MODEL_LOAD_FAILED"))
    with pytest.raises(StatusOrderError):
        status.activate(model_pb2.Model())
    status.drain()
    assert status.state is State.FAILED


async def test_a_watcher_wakes_at_a_change_and_not_before() -> None:
    status = Status()
    await status.wait_for_change(status.version, 0.01)
    waiting = asyncio.ensure_future(status.wait_for_change(status.version, 30))
    await asyncio.sleep(0)
    assert not waiting.done()
    status.drain()
    await asyncio.wait_for(waiting, 5)


async def test_the_last_state_is_told_or_given_up() -> None:
    status = Status()
    await status.wait_until_told(0.01)
    status.note_told()
    await asyncio.wait_for(status.wait_until_told(30), 5)
