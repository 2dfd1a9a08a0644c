"""Requests whose workers die: the second attempt, with it and without it, and the end of a request that kills."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from grpc import StatusCode

from gateway.attempts import Retries
from gateway.model_status import Exit, ExitCause
from gateway.quarantine import Quarantine, QuarantineLimits
from tests.gateway.relay_calls import LIMIT_S, begin
from tests.gateway.statuses import Seen, failure_of, seen
from tests.support.scripted_worker import (
    BEGUN,
    STREAM_STREAM,
    UNARY_STREAM,
    UNARY_UNARY,
    RelayUnderTest,
    relay_under_test,
    request,
)

POISON = "poison"
dying: set[asyncio.Task[None]] = set()


class Mortal:
    """Workers that die of one prompt, before they begin it or after, and answer every other."""

    def __init__(self, *, begins: bool, cause: ExitCause = ExitCause.DIED) -> None:
        self.relay: RelayUnderTest | None = None
        self.deaths = 0
        self.is_deadly = True
        self._begins = begins
        self._exit = Exit(cause, signal=6)

    async def unary(self, body: bytes, context: Any) -> bytes:
        await self._meet(body, context)
        return b"answer"

    async def stream(self, body: bytes, context: Any) -> AsyncIterator[bytes]:
        await self._meet(body, context)
        yield b"answer"

    @property
    def answers(self) -> dict[str, Callable[..., Any]]:
        return {UNARY_UNARY: self.unary, UNARY_STREAM: self.stream}

    async def _meet(self, body: bytes, context: Any) -> None:
        assert self.relay is not None
        if self._begins:
            await context.send_initial_metadata(BEGUN)
        if self.is_deadly and POISON.encode() in body:
            self.deaths += 1
            await kill(self.relay, self._exit)


async def kill(relay: RelayUnderTest, exit_: Exit) -> None:
    """Have the present worker die under whoever calls this, one of its own answers."""
    living = next(one for one in relay.pool.workers if not one.instance.exit.done())
    dying.add(asyncio.create_task(living.die(exit_)))
    await asyncio.Event().wait()


async def outcome(relay: RelayUnderTest, prompt: str) -> str:
    try:
        await relay.call(UNARY_UNARY)(request(prompt=prompt), timeout=LIMIT_S)
    except grpc.aio.AioRpcError as error:
        return seen(error).reason
    return "OK"


async def call(relay: RelayUnderTest, method: str, prompt: str) -> Seen | bytes:
    calling = relay.call(method)(request(prompt=prompt), timeout=LIMIT_S)
    if prompt == POISON:
        return await failure_of(calling)
    return await calling if method == UNARY_UNARY else b"".join([one async for one in calling])


@pytest.mark.parametrize("method", [UNARY_UNARY, UNARY_STREAM])
async def test_a_request_that_two_workers_died_of_is_refused(tmp_path: Path, method: str) -> None:
    mortal = Mortal(begins=True)
    async with relay_under_test(tmp_path, *[mortal.answers] * 4) as mortal.relay:
        reasons: list[Any] = []
        for _ in range(4):
            failure = await call(mortal.relay, method, POISON)
            assert isinstance(failure, Seen)
            reasons.append(failure.reason)
        assert await call(mortal.relay, method, "Hello") == b"answer"
    assert reasons == ["WORKER_DIED", "WORKER_DIED", "REQUEST_QUARANTINED", "REQUEST_QUARANTINED"]
    assert mortal.deaths == 2


async def test_the_refusal_says_how_often_and_that_the_request_is_at_fault(tmp_path: Path) -> None:
    mortal = Mortal(begins=True)
    async with relay_under_test(tmp_path, *[mortal.answers] * 3) as mortal.relay:
        for _ in range(2):
            await call(mortal.relay, UNARY_UNARY, POISON)
        failure = await call(mortal.relay, UNARY_UNARY, POISON)
    assert isinstance(failure, Seen)
    assert (failure.code, failure.metadata) == (StatusCode.INVALID_ARGUMENT, {"deaths": "2"})
    assert "grpc-retry-pushback-ms" not in failure.trailers


async def test_without_the_quarantine_one_request_takes_every_worker(tmp_path: Path) -> None:
    mortal = Mortal(begins=True)
    async with relay_under_test(tmp_path, *[mortal.answers] * 5) as mortal.relay:
        off = QuarantineLimits(deaths=0)
        object.__setattr__(mortal.relay.parts, "retries", Retries(Quarantine(off)))
        for _ in range(5):
            failure = await call(mortal.relay, UNARY_UNARY, POISON)
            assert isinstance(failure, Seen)
            assert failure.reason == "WORKER_DIED"
    assert mortal.deaths == 5


async def test_a_stall_counts_as_a_death(tmp_path: Path) -> None:
    mortal = Mortal(begins=True, cause=ExitCause.STALLED)
    async with relay_under_test(tmp_path, *[mortal.answers] * 3) as mortal.relay:
        reasons = [getattr(await call(mortal.relay, UNARY_UNARY, POISON), "reason", "") for _ in range(3)]
    assert reasons == ["WORKER_STALLED", "WORKER_STALLED", "REQUEST_QUARANTINED"]


async def test_an_unloading_does_not_count(tmp_path: Path) -> None:
    mortal = Mortal(begins=True, cause=ExitCause.UNLOADED)
    async with relay_under_test(tmp_path, *[mortal.answers] * 3) as mortal.relay:
        reasons = [getattr(await call(mortal.relay, UNARY_UNARY, POISON), "reason", "") for _ in range(3)]
    assert reasons == ["MODEL_UNLOADING"] * 3


async def test_a_request_that_kills_before_it_begins_takes_two_workers_and_no_third(tmp_path: Path) -> None:
    mortal = Mortal(begins=False)
    async with relay_under_test(tmp_path, *[mortal.answers] * 3) as mortal.relay:
        first = await call(mortal.relay, UNARY_UNARY, POISON)
        second = await call(mortal.relay, UNARY_UNARY, POISON)
    assert isinstance(first, Seen)
    assert isinstance(second, Seen)
    assert (first.reason, second.reason) == ("WORKER_RESTARTING", "REQUEST_QUARANTINED")
    assert mortal.deaths == 2


async def test_a_request_that_was_answered_meanwhile_is_not_refused(tmp_path: Path) -> None:
    mortal = Mortal(begins=True)
    async with relay_under_test(tmp_path, *[mortal.answers] * 4) as mortal.relay:
        reasons: list[Any] = []
        for mortal.is_deadly in (True, False, True, False, True):
            reasons.append(await outcome(mortal.relay, POISON))
    assert reasons == ["WORKER_DIED", "OK", "WORKER_DIED", "OK", "WORKER_DIED"]


@pytest.mark.parametrize(("is_on", "answered"), [(True, True), (False, False)])
async def test_a_request_that_had_not_begun_is_served_by_the_next_worker(
    tmp_path: Path, is_on: bool, answered: bool
) -> None:
    async def waits(body: bytes, context: Any) -> bytes:
        await kill(relay, Exit(ExitCause.DIED, signal=9))
        return b""

    async def answers(body: bytes, context: Any) -> bytes:
        return b"answer"

    async with relay_under_test(tmp_path, {UNARY_UNARY: waits}, {UNARY_UNARY: answers}) as relay:
        object.__setattr__(relay.parts, "retries", Retries(is_on=is_on))
        calling = begin(relay, UNARY_UNARY)
        outcome = await calling if answered else (await failure_of(calling)).reason
    assert outcome == (b"answer" if answered else "WORKER_RESTARTING")


async def test_streams_of_clients_are_not_held_for_the_same(tmp_path: Path) -> None:
    async def dies(source: Any, context: Any) -> AsyncIterator[bytes]:
        await context.send_initial_metadata(BEGUN)
        await kill(relay, Exit(ExitCause.DIED, signal=6))
        yield b"never"

    async with relay_under_test(tmp_path, *[{STREAM_STREAM: dies}] * 3) as relay:
        reasons = [(await failure_of(begin(relay, STREAM_STREAM))).reason for _ in range(3)]
    assert reasons == ["WORKER_DIED"] * 3
