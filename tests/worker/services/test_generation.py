"""What a worker makes of a request, over its real socket."""

from pomona.v1 import generation_pb2 as pb

from tests.support.tiny_models import END_TOKEN_ID
from tests.support.worker_client import WorkerClient, chat, request
from tests.support.worker_process import MODEL

from .calls import CONTEXT_TOKENS, long_request


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
    # All but the last have eight tokens or more; how many the fine ones have hangs on how fast they are read.
    assert all(e.delta.token_count >= 8 for e in [e for e in coarse if e.HasField("delta")][:-1])


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


async def test_a_message_with_eos_ends_by_it(client: WorkerClient) -> None:
    bias = pb.SamplingParams(temperature=0, logit_bias={END_TOKEN_ID: 900})
    answer = await client.ask(request(spec=pb.GenerationSpec(prompt="ab", sampling=bias)))

    assert answer.sequences[0].finish == pb.Finish(reason=pb.FINISH_REASON_EOS, eos_token_id=END_TOKEN_ID)
    assert answer.sequences[0].text == ""
