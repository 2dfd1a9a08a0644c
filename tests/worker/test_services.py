"""A worker's answers over its real socket: what it makes, and how it refuses bad input and lives on."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.struct_pb2 import NULL_VALUE, Value
from pomona.v1 import generation_pb2 as pb
from pomona.v1 import model_pb2, server_pb2, worker_pb2

from tests.support.tiny_models import CHAT_TEMPLATE, END_TOKEN_ID, VOCAB_SIZE, write_llama
from tests.support.worker_client import WorkerClient, chat, client_of, refusal_of, request, rest_of, stamps
from tests.support.worker_process import MODEL, WorkerProcess

INVALID = grpc.StatusCode.INVALID_ARGUMENT
CONTEXT_TOKENS = 1300
LONG_TOKENS = 1200
MAX_RESPONSE_BYTES = 2000
TEMPLATE_TIMEOUT_S = 2.0
# What the first message says decides how the template misbehaves.
TEMPLATE = (
    "{% set said = messages[0]['content'] %}"
    "{% if said == 'raise' %}{{ raise_exception('no such talk') }}{% endif %}"
    "{% if said == 'loop' %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{% endif %}"
    "{% if said == 'escape' %}{{ ''.__class__.__mro__ }}{% endif %}"
    "{% if said == 'fill' %}{% set full = namespace(text='0123456789') %}"
    "{% for _ in range(40) %}{% set full.text = full.text ~ full.text %}{% endfor %}{% endif %}"
    "{% if mood is defined %}{{ mood }} {% endif %}{% if enable_thinking %}ponder {% endif %}" + CHAT_TEMPLATE
)


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    folder = write_llama(tmp_path_factory.mktemp("checkpoint") / "tiny")
    told = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**told, "chat_template": TEMPLATE}))
    process = WorkerProcess(
        folder,
        context_tokens=CONTEXT_TOKENS,
        max_response_bytes=MAX_RESPONSE_BYTES,
        template_timeout_s=TEMPLATE_TIMEOUT_S,
        max_batch_rows=2,
        max_queue_requests=2,
    )
    yield process
    process.end()


@pytest.fixture
async def client(worker: WorkerProcess) -> AsyncIterator[WorkerClient]:
    async with client_of(worker) as connected:
        await connected.is_active()
        yield connected
        async with asyncio.timeout(10):
            while await listed(connected):
                pass


async def answers_still(client: WorkerClient) -> bool:
    answer = await client.ask(request(request_id="after"))
    return answer.usage.completion_tokens == 4


def long_request(request_id: str, kind: type[Any] = pb.StreamGenerateRequest, max_tokens: int = LONG_TOKENS) -> Any:
    """Ask for more tokens than anything here waits for."""
    spec = pb.GenerationSpec(prompt="ab", stopping=pb.StoppingParams(max_tokens=max_tokens, ignore_eos=True))
    return request(kind, request_id, spec=spec)


async def test_a_stream_numbers_its_events_and_begins_and_ends_as_the_contract_says(client: WorkerClient) -> None:
    events = await client.stream(request(pb.StreamGenerateRequest))

    assert [event.event_number for event in events] == list(range(len(events)))
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds[0] == "started"
    assert kinds[-2:] == ["sequence_finished", "completed"]
    assert set(kinds[1:-2]) == {"delta"}
    assert events[0].started.prompt_tokens == 2
    assert events[0].started.resolved_model.worker_instance_id == client.worker.settings["instance_id"]
    assert sum(event.delta.token_count for event in events) == events[-1].completed.usage.completion_tokens == 4
    assert events[-2].sequence_finished.finish.reason == pb.FINISH_REASON_MAX_TOKENS


async def test_the_unary_answer_is_what_the_stream_adds_up_to(client: WorkerClient) -> None:
    spec = pb.GenerationSpec(
        chat=chat("tell"),
        sampling=pb.SamplingParams(temperature=1.5, seed=7),
        stopping=pb.StoppingParams(max_tokens=40, ignore_eos=True),
        output=pb.OutputOptions(token_ids=True),
    )

    answer = await client.ask(request(spec=spec))
    events = await client.stream(request(pb.StreamGenerateRequest, spec=spec))

    assert answer.sequences[0].text == "".join(event.delta.text for event in events)
    tokens = [token for event in events for token in event.delta.tokens]
    assert list(answer.sequences[0].tokens) == tokens
    assert len(tokens) == 40
    assert answer.seed == 7
    assert answer.sequences[0].finish == events[-2].sequence_finished.finish


async def test_a_seed_is_made_and_told_where_none_is_given(client: WorkerClient) -> None:
    spec = pb.GenerationSpec(prompt="ab", sampling=pb.SamplingParams(temperature=1))
    answer = await client.ask(request(spec=spec))

    spec.sampling.seed = answer.seed
    again = await client.ask(request(spec=spec))

    assert again.sequences[0].text == answer.sequences[0].text


async def test_a_stop_string_ends_the_text_before_it(client: WorkerClient) -> None:
    whole = (await client.ask(request(spec=pb.GenerationSpec(prompt="ab", stopping=stops(20))))).sequences[0].text
    stop = whole[3:5]

    answer = await client.ask(request(spec=pb.GenerationSpec(prompt="ab", stopping=stops(20, stop))))

    assert answer.sequences[0].text == whole[: whole.index(stop)]
    assert answer.sequences[0].finish == pb.Finish(reason=pb.FINISH_REASON_STOP, stop_string=stop)


def stops(max_tokens: int, *strings: str) -> pb.StoppingParams:
    return pb.StoppingParams(max_tokens=max_tokens, ignore_eos=True, stop_strings=strings)


async def test_prefill_progress_comes_when_asked_for(client: WorkerClient) -> None:
    options = pb.StreamOptions(prefill_progress=True)
    events = await client.stream(request(pb.StreamGenerateRequest, stream_options=options))

    assert events[1].prefill_progress == pb.PrefillProgress(processed_tokens=2, total_tokens=2)


async def test_coalesced_deltas_carry_the_same_text_in_fewer_messages(client: WorkerClient) -> None:
    fine = await client.stream(long_request("fine", max_tokens=32))
    coarse_request = long_request("coarse", max_tokens=32)
    coarse_request.stream_options.coalesce_tokens = 8
    coarse = await client.stream(coarse_request)

    assert "".join(e.delta.text for e in coarse) == "".join(e.delta.text for e in fine)
    assert len(coarse) < len(fine) / 2


async def test_without_max_tokens_the_context_is_the_limit(client: WorkerClient) -> None:
    message = pb.GenerateRequest(model=MODEL, request_id="r1")
    message.spec.prompt = "x" * (CONTEXT_TOKENS - 10)
    message.spec.stopping.ignore_eos = True

    answer = await client.ask(message)

    assert answer.sequences[0].finish.reason == pb.FINISH_REASON_CONTEXT_LENGTH
    assert answer.usage.completion_tokens == 10


async def test_tokens_are_counted_as_generation_counts_them(client: WorkerClient) -> None:
    counted = await client.ask(request(pb.CountTokensRequest, chat=chat("hello"), return_token_ids=True))
    generated = await client.ask(request(spec=pb.GenerationSpec(chat=chat("hello"))))

    assert counted.token_count == generated.usage.prompt_tokens == len(counted.token_ids.ids)
    assert counted.max_context_tokens == CONTEXT_TOKENS
    assert (await client.ask(request(pb.CountTokensRequest, prompt="x" * 2999))).token_count == 2999


async def test_template_variables_reach_the_template(client: WorkerClient) -> None:
    plain = chat("hello")
    moody = chat("hello", enable_thinking=True)
    moody.template_vars["mood"].string_value = "glad"

    plain_count = await client.ask(request(pb.CountTokensRequest, chat=plain))
    moody_count = await client.ask(request(pb.CountTokensRequest, chat=moody))

    assert moody_count.token_count == plain_count.token_count + len("glad ponder ")


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


def sent(message: Any) -> dict[str, Any]:
    return {"body": message.SerializeToString(), "stamped": stamps(message)}


async def listed(client: WorkerClient) -> dict[str, Any]:
    answer = await client.gateway.ListWorkerRequests(
        worker_pb2.ListWorkerRequestsRequest(), metadata=client.worker.metadata()
    )
    return {each.request_id: each for each in answer.requests}


async def eventually_listed(client: WorkerClient, request_id: str, state: Any) -> Any:
    async with asyncio.timeout(10):
        while True:
            found = (await listed(client)).get(request_id)
            if found is not None and found.state == state:
                return found


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


def spec(**fields: Any) -> pb.GenerationSpec:
    return pb.GenerationSpec(**fields)


def sampling(**fields: Any) -> pb.GenerationSpec:
    return pb.GenerationSpec(sampling=pb.SamplingParams(**fields))


def stopping(**fields: Any) -> pb.GenerationSpec:
    return pb.GenerationSpec(stopping=pb.StoppingParams(**fields))


def with_role(role: int) -> pb.GenerationSpec:
    message = pb.ChatMessage.FromString(b"\x08" + bytes([role]) + b"\x12\x01x")
    return pb.GenerationSpec(chat=pb.ChatInput(messages=[message]))


BAD_SPECS = {
    "no input": (pb.GenerationSpec(chat=pb.ChatInput()), "INVALID_FIELD", "spec.chat.messages"),
    "an empty prompt": (spec(prompt=""), "INVALID_FIELD", "spec.prompt"),
    "no token ids": (spec(token_ids={}), "INVALID_FIELD", "spec.token_ids.ids"),
    "a token id past the vocabulary": (
        spec(token_ids={"ids": [1, VOCAB_SIZE]}),
        "INVALID_FIELD",
        "spec.token_ids.ids[1]",
    ),
    "a prompt over the context": (spec(prompt="x" * CONTEXT_TOKENS), "CONTEXT_TOO_LONG", "spec.prompt"),
    "token ids over the context": (spec(token_ids={"ids": [1] * 3000}), "CONTEXT_TOO_LONG", "spec.token_ids.ids"),
    "a negative temperature": (sampling(temperature=-1), "INVALID_FIELD", "spec.sampling.temperature"),
    "a temperature that is no number": (
        sampling(temperature=float("nan")),
        "INVALID_FIELD",
        "spec.sampling.temperature",
    ),
    "an endless penalty": (sampling(presence_penalty=float("inf")), "INVALID_FIELD", "spec.sampling.presence_penalty"),
    "10,000 stop strings": (stopping(stop_strings=["x"] * 10_000), "INVALID_FIELD", "spec.stopping.stop_strings"),
    "no tokens at all": (stopping(max_tokens=0), "INVALID_FIELD", "spec.stopping.max_tokens"),
    "an unknown role": (with_role(9), "UNSUPPORTED_OPTION", "spec.chat.messages[0].role"),
    "a message without a role": (with_role(0), "INVALID_FIELD", "spec.chat.messages[0].role"),
    "a template that raises": (spec(chat=chat("raise")), "CHAT_TEMPLATE_REJECTED", "spec.chat"),
    "a template that loops": (spec(chat=chat("loop")), "CHAT_TEMPLATE_REJECTED", "spec.chat"),
    "a template that leaves its sandbox": (spec(chat=chat("escape")), "CHAT_TEMPLATE_REJECTED", "spec.chat"),
    "a template that fills the memory": (spec(chat=chat("fill")), "CHAT_TEMPLATE_REJECTED", "spec.chat"),
    "a grammar": (spec(constraint={"regex": "a*"}), "UNSUPPORTED_OPTION", "spec.constraint"),
}


@pytest.mark.parametrize("name", BAD_SPECS)
async def test_bad_input_is_refused_by_its_field_and_the_worker_lives(client: WorkerClient, name: str) -> None:
    bad, reason, field = BAD_SPECS[name]
    message = request(spec=bad)
    message.spec.CopyFrom(bad)
    if bad.WhichOneof("input") is None:
        message.spec.prompt = "ab"

    refusal = await client.refused(message)

    assert (refusal.code, refusal.reason, refusal.field) == (INVALID, reason, field)
    assert await answers_still(client)


async def test_a_long_prompt_is_told_its_size(client: WorkerClient) -> None:
    refusal = await client.refused(request(spec=spec(prompt="x" * 3000)))
    huge = await client.refused(request(spec=spec(prompt="x" * (2 << 20))))

    assert refusal.metadata["prompt_tokens"] == "3000"
    assert refusal.metadata["max_context_tokens"] == str(CONTEXT_TOKENS)
    assert huge.reason == "CONTEXT_TOO_LONG"


async def test_what_the_template_raises_is_said(client: WorkerClient) -> None:
    refusal = await client.refused(request(spec=spec(chat=chat("raise"))))
    assert "no such talk" in refusal.message


async def test_a_variable_that_the_template_does_not_read_is_refused(client: WorkerClient) -> None:
    said = chat("hello")
    said.template_vars["colour"].string_value = "red"

    refusal = await client.refused(request(spec=spec(chat=said)))

    assert (refusal.reason, refusal.field) == ("UNSUPPORTED_OPTION", 'spec.chat.template_vars["colour"]')


async def test_malformed_bytes_are_refused(client: WorkerClient) -> None:
    refusal = await client.refused_body(pb.GenerateRequest, b"\xff\xff\xff", stamps(request()))

    assert (refusal.code, refusal.reason) == (INVALID, "MALFORMED_REQUEST")
    assert await answers_still(client)


async def test_chat_and_prompt_together_are_refused_by_both_names(client: WorkerClient) -> None:
    message = request()
    more = pb.GenerateRequest(spec=spec(chat=chat("hello"))).SerializeToString()

    refusal = await client.refused_body(pb.GenerateRequest, message.SerializeToString() + more, stamps(message))

    assert (refusal.reason, refusal.field) == ("INVALID_FIELD", "spec")
    assert "prompt and chat" in refusal.message


async def test_an_unknown_field_is_refused_by_its_path(client: WorkerClient) -> None:
    message = request()
    unknown = pb.GenerateRequest(spec=pb.GenerationSpec.FromString(b"\xa2\x06\x01x")).SerializeToString()

    refusal = await client.refused_body(pb.GenerateRequest, message.SerializeToString() + unknown, stamps(message))

    assert (refusal.reason, refusal.field) == ("UNSUPPORTED_OPTION", "spec.100")


@pytest.mark.parametrize("change", [{"model": "other"}, {"request_id": "other"}, {"priority": "5"}])
async def test_a_body_that_differs_from_its_stamps_is_refused(client: WorkerClient, change: dict[str, str]) -> None:
    message = request()

    refusal = await client.refused_body(pb.GenerateRequest, message.SerializeToString(), {**stamps(message), **change})

    assert (refusal.code, refusal.reason) == (INVALID, "MALFORMED_REQUEST")


async def test_a_request_for_another_model_is_refused(client: WorkerClient) -> None:
    message = request()
    message.model = "other"
    assert (await client.refused(message)).reason == "MALFORMED_REQUEST"


async def test_a_unary_answer_over_the_limit_is_refused_with_what_it_cost(client: WorkerClient) -> None:
    message = long_request("large", pb.GenerateRequest)
    message.spec.output.token_ids = True

    refusal = await client.refused(message)

    assert (refusal.code, refusal.reason) == (INVALID, "RESPONSE_TOO_LARGE")
    assert refusal.usage is not None
    assert refusal.usage.completion_tokens > 0
    assert await answers_still(client)


async def test_counted_tokens_over_the_limit_are_refused(client: WorkerClient) -> None:
    counted = request(pb.CountTokensRequest, prompt="x" * 3 * MAX_RESPONSE_BYTES, return_token_ids=True)
    assert (await client.refused(counted)).reason == "RESPONSE_TOO_LARGE"


@pytest.mark.parametrize("secret", ["", "wrong"])
async def test_a_call_without_the_secret_is_refused(client: WorkerClient, secret: str) -> None:
    call = client.gateway.Handshake(worker_pb2.HandshakeRequest(), metadata=(("x-pomona-secret", secret),))
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_services_that_are_not_built_are_unimplemented(client: WorkerClient) -> None:
    send: Any = client.channel.unary_unary("/pomona.v1.EmbeddingService/Embed")
    call = send(b"", metadata=client.worker.metadata())
    assert await call.code() is grpc.StatusCode.UNIMPLEMENTED


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
    nulls = request(spec=spec(chat=chat("hello")))
    nulls.spec.chat.template_vars["x"].list_value.values.extend([Value(null_value=NULL_VALUE)] * 3_900_000)
    ids = request(spec=spec(token_ids={"ids": [1] * 15_000_000}))
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


async def test_a_message_with_eos_ends_by_it(client: WorkerClient) -> None:
    bias = pb.SamplingParams(temperature=0, logit_bias={END_TOKEN_ID: 900})
    answer = await client.ask(request(spec=pb.GenerationSpec(prompt="ab", sampling=bias)))

    assert answer.sequences[0].finish == pb.Finish(reason=pb.FINISH_REASON_EOS, eos_token_id=END_TOKEN_ID)
    assert answer.sequences[0].text == ""
