"""Requests in flight: who waits, who is listed, and how each is ended."""

import asyncio

import grpc
import grpc.aio
import pytest
from pomona.v1 import generation_pb2 as pb
from pomona.v1 import server_pb2, worker_pb2

from tests.support.worker_client import WorkerClient, refusal_of, request, rest_of, stamps
from tests.support.worker_process import MODEL

from .calls import answers_still, eventually_listed, listed, long_request, sent


async def test_initial_metadata_waits_for_the_prefill(client: WorkerClient) -> None:
    running = [client.call(pb.StreamGenerateRequest, **sent(long_request(f"run{index}"))) for index in range(2)]
    for call in running:
        await call.initial_metadata()
    queued = client.call(pb.StreamGenerateRequest, **sent(long_request("queued")))
    waiting = asyncio.ensure_future(queued.initial_metadata())
    await eventually_listed(client, "queued", server_pb2.RequestInfo.STATE_QUEUED)
    assert not waiting.done()

    for call in running:
        call.cancel()

    await asyncio.wait_for(waiting, 10)
    queued.cancel()


async def test_a_caller_that_goes_away_frees_its_row(client: WorkerClient) -> None:
    call = client.call(pb.StreamGenerateRequest, **sent(long_request("gone")))
    await call.read()
    call.cancel()

    async with asyncio.timeout(10):
        while await listed(client):
            pass
    assert await answers_still(client)


async def test_an_operator_ends_a_request_and_the_caller_learns_why(client: WorkerClient) -> None:
    call = client.call(pb.StreamGenerateRequest, timeout=None, **sent(long_request("ended")))
    await call.read()
    info = (await listed(client))["ended"]
    assert (info.method, info.model, info.prompt_tokens) == ("StreamGenerate", MODEL, 2)

    cancelled = await client.gateway.CancelWorkerRequest(
        worker_pb2.CancelWorkerRequestRequest(request_id="ended"), metadata=client.worker.metadata()
    )

    assert cancelled.found
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await rest_of(call)
    refusal = refusal_of(raised.value)
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.CANCELLED, "CANCELLED_BY_OPERATOR")
    assert refusal.usage is not None
    assert refusal.usage.prompt_tokens == 2


async def test_an_unknown_request_is_not_found_to_cancel(client: WorkerClient) -> None:
    answer = await client.gateway.CancelWorkerRequest(
        worker_pb2.CancelWorkerRequestRequest(request_id="nobody"), metadata=client.worker.metadata()
    )
    assert not answer.found


async def test_a_deadline_ends_a_request(client: WorkerClient) -> None:
    message = long_request("late", pb.GenerateRequest)
    call = client.call(pb.GenerateRequest, message.SerializeToString(), stamps(message), timeout=0.02)

    assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert await answers_still(client)


async def test_a_caller_that_cancels_may_come_back_with_its_id_at_once(client: WorkerClient) -> None:
    """The gateway judges which ids are taken; the row that is still to be dropped here is no hindrance."""
    for _ in range(5):
        call = client.call(pb.StreamGenerateRequest, **sent(long_request("again")))
        await call.read()
        call.cancel()
        assert (await client.ask(request(request_id="again"))).request_id == "again"


async def test_an_operator_ends_all_that_has_the_id(client: WorkerClient) -> None:
    calls = [client.call(pb.StreamGenerateRequest, **sent(long_request("twice"))) for _ in range(2)]
    for call in calls:
        await call.read()

    cancelled = await client.gateway.CancelWorkerRequest(
        worker_pb2.CancelWorkerRequestRequest(request_id="twice"), metadata=client.worker.metadata()
    )

    assert cancelled.found
    for call in calls:
        with pytest.raises(grpc.aio.AioRpcError, match="operator"):
            await rest_of(call)


async def test_a_full_queue_says_so(client: WorkerClient) -> None:
    calls = [client.call(pb.StreamGenerateRequest, **sent(long_request(f"q{index}"))) for index in range(4)]
    async with asyncio.timeout(10):
        while len(await listed(client)) < 4:
            pass

    refusal = await client.refused(request(request_id="one too many"))
    for call in calls:
        call.cancel()

    assert (refusal.code, refusal.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
