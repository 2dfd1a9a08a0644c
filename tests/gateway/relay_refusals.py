"""One true cause for each reason that the gateway's relay and its own services answer with, over a real channel."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from pomona.v1 import model_pb2

from gateway.errors import CancelledByOperator, GatewayError
from gateway.model_status import Exit, ExitCause, ModelState, ModelStatus
from gateway.pull_errors import DiskFull, HubUnreachable, RepositoryForbidden
from tests.gateway.relay_calls import LIMIT_S, Held, begin
from tests.gateway.services.test_stock import plane_of, pulled
from tests.gateway.statuses import Seen, failure_of
from tests.gateway.test_slow_readers import flood, status_after_all, stuck
from tests.support.scripted_worker import (
    BEGUN,
    STREAM_STREAM,
    UNARY_STREAM,
    UNARY_UNARY,
    RelayUnderTest,
    relay_under_test,
    request,
)
from tests.support.waiting import eventually

Cause = Callable[[Path], Awaitable[Seen]]
REPOSITORY = "org/new"


async def malformed(folder: Path) -> Seen:
    """Send what is no protobuf."""
    async with relay_under_test(folder, {}) as relay:
        return await failure_of(relay.call(UNARY_UNARY)(b"\xff\xff", timeout=LIMIT_S))


async def out_of_range(folder: Path) -> Seen:
    """Send a priority that no request has."""
    async with relay_under_test(folder, {}) as relay:
        return await failure_of(relay.call(UNARY_UNARY)(request(priority=1000), timeout=LIMIT_S))


async def unknown_model(folder: Path) -> Seen:
    """Ask for a model that is not there."""
    async with relay_under_test(folder, {}) as relay:
        return await failure_of(relay.call(UNARY_UNARY)(request("nobody"), timeout=LIMIT_S))


async def idle(folder: Path) -> Seen:
    """Open a stream and send nothing."""
    async with relay_under_test(folder, {}, first_message_s=0.1) as relay:
        return await failure_of(relay.call(STREAM_STREAM)(timeout=LIMIT_S))


async def same_id(folder: Path) -> Seen:
    """Send an id that is in flight."""
    held = Held()
    async with relay_under_test(folder, held.answers) as relay:
        first = relay.call(UNARY_STREAM)(request(request_id="same"), timeout=LIMIT_S)
        await eventually(lambda: held.calls == 1)
        failure = await failure_of(relay.call(UNARY_STREAM)(request(request_id="same"), timeout=LIMIT_S))
        first.cancel()
        return failure


async def full(folder: Path) -> Seen:
    """Send one request more than there are places."""
    held = Held()
    async with relay_under_test(folder, held.answers, max_requests_per_model=1) as relay:
        first = begin(relay, UNARY_STREAM)
        await eventually(lambda: held.calls == 1)
        failure = await failure_of(begin(relay, UNARY_STREAM))
        first.cancel()
        return failure


async def draining(folder: Path) -> Seen:
    """Come when no more requests are taken."""
    async with relay_under_test(folder, {}) as relay:
        relay.parts.admission.close()
        return await failure_of(begin(relay, UNARY_STREAM))


async def slow(folder: Path) -> Seen:
    """Open a stream and take nothing of it."""
    async with relay_under_test(folder, {UNARY_STREAM: flood}, slow_reader_s=0.5) as relay:
        call, _ = await stuck(relay, UNARY_STREAM, timeout=60.0)
        await eventually(lambda: not len(relay.parts.requests), LIMIT_S)
        return await status_after_all(call)


async def cancelled(folder: Path) -> Seen:
    """Have an operator end the request."""
    held = Held()
    async with relay_under_test(folder, held.answers) as relay:
        call = await _begun(relay, held)
        (one,) = relay.parts.requests
        one.abort(CancelledByOperator(one.key.request_id))
        return await failure_of(call)


async def _begun(relay: RelayUnderTest, held: Held) -> Any:
    call = begin(relay, UNARY_STREAM)
    await eventually(lambda: held.calls == 1 and any(one.events_sent for one in relay.parts.requests))
    return call


async def died(folder: Path) -> Seen:
    """Lose the worker in the midst of a stream."""
    held = Held()
    async with relay_under_test(folder, held.answers) as relay:
        call = await _begun(relay, held)
        await relay.pool.workers[0].die(Exit(ExitCause.DIED, signal=9))
        return await failure_of(call)


async def stalled(folder: Path) -> Seen:
    """Have the worker given up in the midst of a stream."""
    held = Held()
    async with relay_under_test(folder, held.answers) as relay:
        call = await _begun(relay, held)
        relay.pool.workers[0].give_up(Exit(ExitCause.STALLED))
        return await failure_of(call)


async def unloading(folder: Path) -> Seen:
    """Have the model unloaded in the midst of a stream."""
    held = Held()
    async with relay_under_test(folder, held.answers) as relay:
        call = await _begun(relay, held)
        relay.pool.workers[0].give_up(Exit(ExitCause.UNLOADED))
        return await failure_of(call)


async def restarting(folder: Path) -> Seen:
    """Lose two workers before either begins."""
    held = [Held(initial=None), Held(initial=None)]
    async with relay_under_test(folder, *({UNARY_UNARY: one.unary} for one in held)) as relay:
        call = relay.call(UNARY_UNARY)(request(), timeout=LIMIT_S)
        for one, worker in zip(held, relay.pool.workers, strict=True):
            await eventually(lambda one=one: one.calls == 1)
            await worker.die()
        return await failure_of(call)


async def deadly(folder: Path) -> Seen:
    """Send the same request again after two workers died with it."""
    workers = [Held() for _ in range(2)]
    async with relay_under_test(folder, *(held.answers for held in workers)) as relay:
        for held, worker in zip(workers, relay.pool.workers, strict=True):
            call = begin(relay, UNARY_STREAM)
            await eventually(lambda held=held: held.calls == 1 and any(one.events_sent for one in relay.parts.requests))
            await worker.die(Exit(ExitCause.DIED, signal=9))
            await failure_of(call)
        return await failure_of(begin(relay, UNARY_STREAM))


async def bug(folder: Path) -> Seen:
    """Have the worker fail with an exception of its own."""

    async def breaks(body: bytes, context: Any) -> AsyncIterator[bytes]:
        await context.send_initial_metadata(BEGUN)
        raise RuntimeError("/private/path")
        yield b""

    async with relay_under_test(folder, {UNARY_STREAM: breaks}) as relay:
        return await failure_of(begin(relay, UNARY_STREAM))


async def _pull_that_fails(folder: Path, error: GatewayError | None = None, refusal: str = "") -> Seen:
    async with plane_of(folder, refusal=refusal) as (plane, hub):
        hub.error = error
        asked = model_pb2.PullModelRequest(repository=REPOSITORY)
        return await failure_of(plane.models.PullModel(asked, timeout=LIMIT_S))


async def disk_full(folder: Path) -> Seen:
    """Pull what does not fit on the disk."""
    return await _pull_that_fails(folder, DiskFull(REPOSITORY, 2_000_000_000, 1_000_000_000))


async def hub_away(folder: Path) -> Seen:
    """Pull where the hub does not answer."""
    return await _pull_that_fails(folder, HubUnreachable(REPOSITORY, "the hub does not answer"))


async def gated(folder: Path) -> Seen:
    """Pull what the hub does not let this server have."""
    return await _pull_that_fails(folder, RepositoryForbidden(REPOSITORY, "it is gated"))


async def no_pulls(folder: Path) -> Seen:
    """Pull where nobody may."""
    return await _pull_that_fails(folder, refusal="its setting allow_pull is off")


async def in_use(folder: Path) -> Seen:
    """Delete a model that is loaded."""
    async with plane_of(folder) as (plane, _):
        await pulled(plane)
        plane.pool.set(ModelStatus(REPOSITORY, ModelState.ACTIVE))
        return await failure_of(
            plane.models.DeleteModel(model_pb2.DeleteModelRequest(model=REPOSITORY), timeout=LIMIT_S)
        )


async def late(folder: Path) -> Seen:
    """Have the deadline pass while the worker computes."""
    held = Held()
    async with relay_under_test(folder, held.answers) as relay:
        return await failure_of(begin(relay, UNARY_STREAM, timeout=0.2))


async def gone(folder: Path) -> Seen:
    """Cancel a call."""
    held = Held()
    async with relay_under_test(folder, held.answers) as relay:
        call = await _begun(relay, held)
        call.cancel()
        try:
            await call.read()
        except asyncio.CancelledError:
            return Seen(await call.code(), await call.details())
        raise AssertionError("not cancelled")


CAUSES: Mapping[str, Cause] = {
    "MALFORMED_REQUEST": malformed,
    "INVALID_FIELD": out_of_range,
    "MODEL_NOT_FOUND": unknown_model,
    "STREAM_IDLE": idle,
    "DUPLICATE_REQUEST_ID": same_id,
    "QUEUE_FULL": full,
    "SERVER_DRAINING": draining,
    "SLOW_READER": slow,
    "CANCELLED_BY_OPERATOR": cancelled,
    "WORKER_DIED": died,
    "WORKER_STALLED": stalled,
    "MODEL_UNLOADING": unloading,
    "WORKER_RESTARTING": restarting,
    "REQUEST_QUARANTINED": deadly,
    "INTERNAL_ERROR": bug,
    "DISK_FULL": disk_full,
    "HUB_UNREACHABLE": hub_away,
    "MODEL_FORBIDDEN": gated,
    "SCOPE_MISSING": no_pulls,
    "MODEL_IN_USE": in_use,
}
