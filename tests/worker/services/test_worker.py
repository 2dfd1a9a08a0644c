"""What the gateway alone asks a worker, over its real socket."""

import asyncio
import time
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.struct_pb2 import NULL_VALUE, Value
from pomona.v1 import common_pb2, embedding_pb2, model_pb2, transcription_pb2, worker_pb2
from pomona.v1 import generation_pb2 as pb

from tests.support.worker_client import WorkerClient, chat, refusal_of, request, stamps
from tests.support.worker_process import MODEL

from .calls import CONTEXT_TOKENS, long_request, sent


@pytest.mark.parametrize("secret", ["", "wrong"])
async def test_a_call_without_the_secret_is_refused(client: WorkerClient, secret: str) -> None:
    call = client.gateway.Handshake(worker_pb2.HandshakeRequest(), metadata=(("x-pomona-secret", secret),))
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    "method",
    [
        f"/{service.full_name}/{method.name}"
        for module in (embedding_pb2, transcription_pb2)
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    ],
)
async def test_tasks_of_other_models_are_refused_by_name(client: WorkerClient, method: str) -> None:
    # A stream is refused before it is read, and a write that comes too late would hide the status.
    messages = [] if method.endswith("/StreamTranscribe") else [b""]
    send: Any = client.channel.stream_stream(method)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await send(iter(messages), metadata=client.worker.metadata()).read()
    refusal = refusal_of(raised.value)
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "TASK_NOT_SUPPORTED")
    assert refusal.metadata["tasks"] == "generate"


async def test_the_handshake_says_who_answers(client: WorkerClient) -> None:
    answer = await client.gateway.Handshake(worker_pb2.HandshakeRequest(), metadata=client.worker.metadata())

    assert answer.instance_id == client.worker.settings["instance_id"]
    assert (answer.model, answer.pid, answer.schema_revision) == (MODEL, client.worker.pid, 1)
    assert answer.revision


async def test_heartbeats_come_at_their_interval_and_count_the_work(client: WorkerClient) -> None:
    asked = worker_pb2.WatchWorkerRequest(interval=Duration(nanos=100_000_000))
    call = client.gateway.WatchWorker(asked, metadata=client.worker.metadata())
    first = await call.read()
    await client.ask(request())
    later = [await call.read() for _ in range(4)][-1]
    call.cancel()

    assert [first.event_number, later.event_number] == [0, 4]
    assert first.HasField("model")
    assert not later.HasField("model")
    assert first.model.limits.max_context_tokens == CONTEXT_TOKENS
    assert first.model.runtime.implementation == "pomona"
    assert later.stats.completion_tokens_total >= first.stats.completion_tokens_total + 4
    assert later.compute_ticks_total > first.compute_ticks_total
    assert later.stats.memory.footprint_bytes > 10_000_000


async def test_heartbeats_do_not_wait_for_the_engine(client: WorkerClient) -> None:
    calls = [client.call(pb.StreamGenerateRequest, **sent(long_request(f"busy{i}"))) for i in range(2)]
    asked = worker_pb2.WatchWorkerRequest(interval=Duration(nanos=100_000_000))
    beats = client.gateway.WatchWorker(asked, metadata=client.worker.metadata())
    for call in calls:
        await call.read()
    reports = [await beats.read() for _ in range(3)]
    for call in (*calls, beats):
        call.cancel()

    assert all(report.state == model_pb2.MODEL_STATE_ACTIVE for report in reports)


async def test_heartbeats_go_on_while_the_largest_bodies_are_read(client: WorkerClient) -> None:
    nulls = request(spec=pb.GenerationSpec(chat=chat("hello")))
    nulls.spec.chat.template_vars["x"].list_value.values.extend([Value(null_value=NULL_VALUE)] * 3_900_000)
    ids = request(spec=pb.GenerationSpec(token_ids=common_pb2.TokenIds(ids=[1] * 15_000_000)))
    asked = worker_pb2.WatchWorkerRequest(interval=Duration(nanos=100_000_000))
    beats = client.gateway.WatchWorker(asked, metadata=client.worker.metadata())
    bodies = [(nulls.SerializeToString(), stamps(nulls))] * 2 + [(ids.SerializeToString(), stamps(ids))]
    refusals = asyncio.gather(*(client.refused_body(pb.GenerateRequest, *body) for body in bodies))

    longest_s, num_beats = 0.0, 0
    while not refusals.done():
        begun = time.monotonic()
        await beats.read()
        longest_s, num_beats = max(longest_s, time.monotonic() - begun), num_beats + 1
    beats.cancel()

    found = [(refusal.reason, refusal.field) for refusal in await refusals]
    value = 'spec.chat.template_vars["x"].list_value.values[9999]'
    assert found == [("INVALID_FIELD", value)] * 2 + [("CONTEXT_TOO_LONG", "spec.token_ids.ids")]
    assert num_beats > 1
    assert longest_s < 5


async def test_the_socket_belongs_to_its_owner_alone(client: WorkerClient) -> None:
    assert client.worker.socket.stat().st_mode & 0o777 == 0o600


async def test_the_log_level_is_one_of_four(client: WorkerClient) -> None:
    metadata = client.worker.metadata()
    await client.gateway.SetWorkerLogLevel(worker_pb2.SetWorkerLogLevelRequest(level="info"), metadata=metadata)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await client.gateway.SetWorkerLogLevel(worker_pb2.SetWorkerLogLevelRequest(level="loud"), metadata=metadata)
    assert refusal_of(raised.value).reason == "INVALID_FIELD"


async def test_an_answer_tells_the_gateway_what_it_consumed(client: WorkerClient) -> None:
    asked = request()
    call = client.call(type(asked), asked.SerializeToString(), stamps(asked))
    answer = await call
    trailers: dict[str, Any] = dict(await call.trailing_metadata())
    told = common_pb2.Usage.FromString(trailers["x-pomona-usage-bin"])
    usage = answer.usage
    assert (told.prompt_tokens, told.completion_tokens) == (usage.prompt_tokens, usage.completion_tokens)
    assert told.completion_tokens > 0
