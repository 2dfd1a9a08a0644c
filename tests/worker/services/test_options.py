"""What a request asks for reaches the engine, and what the engine says of it reaches the caller."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pomona.v1 import common_pb2, server_pb2, worker_pb2
from pomona.v1 import generation_pb2 as pb

from tests.support.waiting import eventually
from tests.support.worker_client import request, stamps
from tests.support.worker_process import MODEL
from worker.events import (
    Alternative,
    Completed,
    Event,
    FinishReason,
    SequenceFinished,
    Started,
    TextDelta,
    Timing,
    TokenDetail,
    Usage,
)
from worker.footprint import FootprintGauge
from worker.sequence import CacheUse
from worker.services import messages
from worker.services.worker import Identity, WorkerService
from worker.status import Status

from .scripted import CONTEXT_TOKENS, Script, serving

COUNTED = Usage(prompt_tokens=3, completion_tokens=5, cached_prompt_tokens=2, drafted_tokens=7, accepted_draft_tokens=4)
LIKELY = (Alternative(7, b"x", -0.25), Alternative(8, b"yz", -1.5))
DETAILED = TokenDetail(8, b"yz", -1.5, LIKELY)
TWO_SEQUENCES: tuple[Event, ...] = (
    Started(3, 11),
    TextDelta("a", (TokenDetail(5, b"a"),), 1, 0),
    TextDelta("k", (TokenDetail(6, b"k"),), 1, 1),
    TextDelta("b", (TokenDetail(5, b"b"),), 1, 0),
    SequenceFinished(FinishReason.EOS, eos_token_id=0, sequence_index=0),
    TextDelta("l", (TokenDetail(6, b"l"),), 1, 1),
    SequenceFinished(FinishReason.MAX_TOKENS, sequence_index=1),
    Completed(COUNTED, Timing()),
)


def script(*events: Event) -> Script:
    made = Script(events or TWO_SEQUENCES)
    made.gate.set()
    return made


def asking(kind: type[Any] = pb.GenerateRequest, **fields: Any) -> Any:
    """Return a request for two sequences, with other fields of its spec."""
    ids = common_pb2.TokenIds(ids=[1, 2, 3])
    spec = pb.GenerationSpec(token_ids=ids, sampling=pb.SamplingParams(num_sequences=2))
    spec.MergeFrom(pb.GenerationSpec(**fields))
    return request(kind, spec=spec)


async def test_the_unary_answer_holds_every_sequence_whole(tmp_path: Path) -> None:
    async with serving(tmp_path, script()) as services:
        answer = await services.client.ask(asking())

    assert [(each.sequence_index, each.text) for each in answer.sequences] == [(0, "ab"), (1, "kl")]
    assert [[token.raw for token in each.tokens] for each in answer.sequences] == [[b"a", b"b"], [b"k", b"l"]]
    assert answer.sequences[0].finish == pb.Finish(reason=pb.FINISH_REASON_EOS, eos_token_id=0)
    assert answer.sequences[1].finish == pb.Finish(reason=pb.FINISH_REASON_MAX_TOKENS)
    assert answer.seed == 11


async def test_the_stream_says_which_sequence_each_event_is_of(tmp_path: Path) -> None:
    async with serving(tmp_path, script()) as services:
        events = await services.client.stream(asking(pb.StreamGenerateRequest))

    texts = {0: "", 1: ""}
    for event in events:
        texts[event.delta.sequence_index] += event.delta.text
    assert texts == {0: "ab", 1: "kl"}
    finished = [event.sequence_finished for event in events if event.HasField("sequence_finished")]
    assert [each.sequence_index for each in finished] == [0, 1]


async def test_log_probabilities_come_with_their_alternatives(tmp_path: Path) -> None:
    told = script(Started(3, 1), TextDelta("yz", (DETAILED,), 1), TWO_SEQUENCES[-1])
    async with serving(tmp_path, told) as services:
        answer = await services.client.ask(asking(output=pb.OutputOptions(top_logprobs=2)))

    alternatives = [
        pb.TokenAlternative(id=7, raw=b"x", logprob=-0.25),
        pb.TokenAlternative(id=8, raw=b"yz", logprob=-1.5),
    ]
    assert list(answer.sequences[0].tokens) == [pb.TokenInfo(id=8, raw=b"yz", logprob=-1.5, alternatives=alternatives)]


async def test_a_token_without_a_log_probability_has_none(tmp_path: Path) -> None:
    async with serving(tmp_path, script()) as services:
        answer = await services.client.ask(asking(output=pb.OutputOptions(token_ids=True)))

    assert not answer.sequences[0].tokens[0].HasField("logprob")


@pytest.mark.parametrize(
    ("speculation", "drafted"), [(pb.SpeculationOptions(), None), (pb.SpeculationOptions(enabled=True), 7)]
)
async def test_guesses_are_counted_for_those_who_asked_for_them(
    tmp_path: Path, speculation: pb.SpeculationOptions, drafted: int | None
) -> None:
    async with serving(tmp_path, script()) as services:
        unary = (await services.client.ask(asking(speculation=speculation))).usage
        stream = await services.client.stream(asking(pb.StreamGenerateRequest, speculation=speculation))

    assert unary == stream[-1].completed.usage
    assert (unary.HasField("cached_prompt_tokens"), unary.cached_prompt_tokens) == (True, 2)
    assert unary.HasField("drafted_tokens") is unary.HasField("accepted_draft_tokens") is (drafted is not None)
    assert unary.drafted_tokens == (drafted or 0)


async def test_the_limit_of_an_answer_is_for_all_its_sequences_together(tmp_path: Path) -> None:
    halves = [TextDelta("x" * 600, (), 1, index) for index in range(2)]
    ends = [SequenceFinished(FinishReason.EOS, sequence_index=index) for index in range(2)]
    told = script(Started(3, 1), *halves, *ends, TWO_SEQUENCES[-1])
    async with serving(tmp_path, told, max_response_bytes=1000) as services:
        refusal = await services.client.refused(asking())

    assert refusal.reason == "RESPONSE_TOO_LARGE"
    assert refusal.usage is not None
    assert refusal.usage.completion_tokens == 2


@pytest.mark.parametrize("tokens", [(), (TokenDetail(1, b""),), (DETAILED,) * 50])
def test_an_answer_is_never_smaller_than_it_is_taken_for(tokens: tuple[TokenDetail, ...]) -> None:
    told = [messages.token_info(token) for token in tokens]
    answer = pb.GenerateResponse(sequences=[pb.Sequence(text="é", tokens=told)])
    assert answer.ByteSize() * 0.9 - 8 <= messages.min_bytes("é", told) <= answer.ByteSize()


async def test_every_option_reaches_the_engine(tmp_path: Path) -> None:
    told = script()
    asked = asking(
        sampling=pb.SamplingParams(xtc_probability=0.5, xtc_threshold=0.25, seed=9),
        stopping=pb.StoppingParams(max_tokens=8, min_tokens=6),
        output=pb.OutputOptions(top_logprobs=0),
        cache=pb.CacheOptions(bypass_prefix_cache=True),
        speculation=pb.SpeculationOptions(max_draft_tokens=3),
    )
    async with serving(tmp_path, told) as services:
        await services.client.ask(asked)

    (got,) = told.requests
    assert (got.sampling.xtc_probability, got.sampling.xtc_threshold, got.sampling.seed) == (0.5, 0.25, 9)
    assert (got.stopping.max_tokens, got.stopping.min_tokens) == (8, 6)
    assert (got.top_logprobs, got.token_details, got.num_sequences) == (0, True, 2)
    assert (got.cache.is_bypassed, got.max_draft_tokens) == (True, 3)


async def test_only_an_equal_caller_with_an_equal_salt_shares_cached_prompts(tmp_path: Path) -> None:
    told = script()
    callers = [("", ""), ("ann", ""), ("an", "n"), ("", "ann"), ("3:ann", ""), ("ann", "x"), ("annx", "")]

    async def uses() -> list[CacheUse]:
        told.requests.clear()
        for principal, salt in callers:
            message = asking(cache=pb.CacheOptions(cache_salt=salt))
            stamped = {**stamps(message), "principal": principal}
            await services.client.call(pb.GenerateRequest, message.SerializeToString(), stamped)
        return [each.cache for each in told.requests]

    async with serving(tmp_path, told) as services:
        first, second = await uses(), await uses()

    assert len({each.namespace for each in first}) == len(callers)
    assert first == second


async def test_a_group_shares_cached_prompts_and_no_other_does(tmp_path: Path) -> None:
    told = script()
    callers = [("ann", "team"), ("bob", "team"), ("cid", "cid"), ("team", "3:cid"), ("ann", "ann")]
    async with serving(tmp_path, told) as services:
        for principal, group in callers:
            stamped = {**stamps(asking()), "principal": principal, "group": group}
            await services.client.call(pb.GenerateRequest, asking().SerializeToString(), stamped)

    ann, bob, *others = [each.cache.namespace for each in told.requests]
    assert ann == bob
    assert len({ann, *others}) == 4


async def test_a_least_output_that_the_context_has_no_room_for_is_refused(tmp_path: Path) -> None:
    asked = asking(stopping=pb.StoppingParams(max_tokens=CONTEXT_TOKENS, min_tokens=CONTEXT_TOKENS - 2))
    async with serving(tmp_path, script()) as services:
        refusal = await services.client.refused(asked)

    assert (refusal.reason, refusal.field) == ("INVALID_FIELD", "spec.stopping.min_tokens")


async def test_a_request_of_several_sequences_is_listed_once_with_the_tokens_of_all(tmp_path: Path) -> None:
    told = Script(TWO_SEQUENCES, state="decoding", usage=Usage(3, 24))
    async with serving(tmp_path, told) as services:
        unused: Any = None
        worker = WorkerService(Identity("i", MODEL), Status(), services.desk, FootprintGauge(), unused)
        asked = asyncio.ensure_future(services.client.ask(asking()))
        await eventually(lambda: len(told.requests) == 1)
        listed = await worker.list_worker_requests(worker_pb2.ListWorkerRequestsRequest().SerializeToString(), unused)
        told.gate.set()
        await asked

    (info,) = listed.requests
    assert info.state == server_pb2.RequestInfo.STATE_DECODING
    assert (info.prompt_tokens, info.completion_tokens) == (3, 24)
