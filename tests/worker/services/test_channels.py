"""Reasoning, content and calls of tools reach the caller apart, in the stream as in the whole answer."""

from pathlib import Path
from typing import Any

import pytest
from pomona.v1 import common_pb2
from pomona.v1 import generation_pb2 as pb

from tests.support.worker_client import request
from worker.events import (
    Channel,
    Completed,
    Event,
    FinishReason,
    SequenceFinished,
    Started,
    TextDelta,
    Timing,
    TokenDetail,
    ToolCallDelta,
    Usage,
)

from .scripted import Script, serving

COUNTED = Usage(prompt_tokens=3, completion_tokens=9, reasoning_tokens=4, forced_tokens=2)
EVENTS: tuple[Event, ...] = (
    Started(3, 11),
    TextDelta("wh", (TokenDetail(5, b"wh"),), 2, 0, Channel.REASONING),
    TextDelta("y", (), 2, 0, Channel.REASONING),
    TextDelta("so ", (TokenDetail(6, b"so "),), 1),
    ToolCallDelta(0, "call_a", "f", '{"a":1}'),
    TextDelta("and", (), 4),
    ToolCallDelta(1, "call_b", "g", "{}"),
    SequenceFinished(FinishReason.TOOL_CALL, eos_token_id=0),
    Completed(COUNTED, Timing()),
)


def script(*events: Event) -> Script:
    made = Script(events or EVENTS)
    made.gate.set()
    return made


def asking(kind: type[Any] = pb.GenerateRequest, **fields: Any) -> Any:
    return request(kind, spec=pb.GenerationSpec(token_ids=common_pb2.TokenIds(ids=[1, 2, 3]), **fields))


async def test_the_whole_answer_has_each_in_its_field(tmp_path: Path) -> None:
    async with serving(tmp_path, script()) as services:
        answer = await services.client.ask(asking())

    (sequence,) = answer.sequences
    assert (sequence.reasoning, sequence.text) == ("why", "so and")
    assert list(sequence.tool_calls) == [
        pb.ToolCall(id="call_a", name="f", arguments_json='{"a":1}'),
        pb.ToolCall(id="call_b", name="g", arguments_json="{}"),
    ]
    assert [token.id for token in sequence.tokens] == [5, 6]
    assert sequence.finish == pb.Finish(reason=pb.FINISH_REASON_TOOL_CALL, eos_token_id=0)
    assert answer.usage.reasoning_tokens == 4


async def test_the_stream_adds_up_to_the_whole_answer(tmp_path: Path) -> None:
    async with serving(tmp_path, script()) as services:
        answer = await services.client.ask(asking())
        events = await services.client.stream(asking(pb.StreamGenerateRequest))

    texts = {pb.CHANNEL_REASONING: "", pb.CHANNEL_CONTENT: ""}
    counts = dict.fromkeys(texts, 0)
    calls: list[pb.ToolCall] = []
    for event in events:
        if event.HasField("delta"):
            texts[event.delta.channel] += event.delta.text
            counts[event.delta.channel] += event.delta.token_count
        if event.HasField("tool_call"):
            delta = event.tool_call
            assert delta.call_index == len(calls)
            calls.append(pb.ToolCall(id=delta.id, name=delta.name, arguments_json=delta.arguments_json_delta))
    (sequence,) = answer.sequences
    assert list(texts.values()) == [sequence.reasoning, sequence.text]
    assert calls == list(sequence.tool_calls)
    assert events[-1].completed.usage == answer.usage
    assert counts[pb.CHANNEL_REASONING] == answer.usage.reasoning_tokens
    assert sum(counts.values()) == answer.usage.completion_tokens


async def test_calls_come_behind_the_text_before_them_however_it_is_coalesced(tmp_path: Path) -> None:
    async with serving(tmp_path, script()) as services:
        message = asking(pb.StreamGenerateRequest)
        message.stream_options.coalesce_tokens = 100
        events = await services.client.stream(message)

    assert [event.WhichOneof("event") for event in events][1:7] == [
        "delta",
        "delta",
        "tool_call",
        "delta",
        "tool_call",
        "sequence_finished",
    ]


@pytest.mark.parametrize(("spec", "forced"), [({}, None), ({"stopping": pb.StoppingParams(max_reasoning_tokens=3)}, 2)])
async def test_forced_tokens_are_told_where_some_may_be(tmp_path: Path, spec: Any, forced: int | None) -> None:
    async with serving(tmp_path, script(), marks=True) as services:
        usage = (await services.client.ask(asking(**spec))).usage

    assert (usage.forced_tokens if usage.HasField("forced_tokens") else None) == forced


async def test_calls_count_towards_the_size_of_an_answer(tmp_path: Path) -> None:
    call = ToolCallDelta(0, "call_a", "f", '"' + "x" * 2000 + '"')
    async with serving(tmp_path, script(Started(3, 1), call, EVENTS[-1]), max_response_bytes=1000) as services:
        refusal = await services.client.refused(asking())

    assert refusal.reason == "RESPONSE_TOO_LARGE"


async def test_the_constraint_that_ends_a_sequence_is_its_reason(tmp_path: Path) -> None:
    ended = SequenceFinished(FinishReason.CONSTRAINT_COMPLETE)
    async with serving(tmp_path, script(Started(3, 1), TextDelta("a", (), 1), ended, EVENTS[-1])) as services:
        answer = await services.client.ask(asking())

    assert answer.sequences[0].finish == pb.Finish(reason=pb.FINISH_REASON_CONSTRAINT_COMPLETE)
