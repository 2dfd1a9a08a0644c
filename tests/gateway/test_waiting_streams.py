"""A stream whose client was told that it waits is not begun anew elsewhere."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from pomona.v1 import generation_pb2 as pb

from tests.gateway.relay_calls import LIMIT_S, Held, stream_b
from tests.gateway.statuses import failure_of
from tests.support.scripted_worker import MODEL, UNARY_STREAM, relay_under_test, request


class Queued(Held):
    """Tells of its place in the queue, and then waits."""

    async def stream(self, source: Any, context: Any) -> AsyncIterator[bytes]:
        await self._hold(context)
        waiting = pb.Waiting(reason=pb.Waiting.REASON_QUEUED, queue_position=3)
        yield pb.StreamGenerateResponse(waiting=waiting).SerializeToString()
        async for message in super().stream(source, context):
            yield message


async def test_a_stream_that_was_told_of_its_place_ends_with_the_status_of_its_lost_worker(tmp_path: Path) -> None:
    queued = Queued(messages=0, initial=None)
    async with relay_under_test(tmp_path, {UNARY_STREAM: queued.stream}, {UNARY_STREAM: stream_b}) as relay:
        call = relay.call(UNARY_STREAM)(request(), timeout=LIMIT_S)
        message = pb.StreamGenerateResponse.FromString(await anext(aiter(call)))
        assert message.waiting.queue_position == 3
        await relay.pool.workers[0].die()
        failure = await failure_of(call)
    assert (failure.reason, relay.pool.acquired) == ("WORKER_DIED", 1)
    assert failure.metadata["events_sent"] == "1"
    assert failure.metadata["model"] == MODEL
    assert failure.trailers["grpc-retry-pushback-ms"] == "-1"
    assert relay.parts.requests.ended(MODEL) == {"UNAVAILABLE": 1}
