"""Whatever a request asks for and however it is read, its stream keeps its order and adds up to the whole answer."""

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from pomona.v1 import generation_pb2 as pb

from tests.docs.thinking_model import write_thinking_llama
from tests.support.worker_client import WorkerClient, chat, client_of, request, stamps
from tests.support.worker_process import WorkerProcess

CLOSE = "</think>"
OUTBOX_BYTES = 300
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "é": {"enum": ["ď👋", "</think>", "x"]}},
        "required": ["a", "é"],
        "additionalProperties": False,
    }
)


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    folder = write_thinking_llama(tmp_path_factory.mktemp("checkpoint") / "thinking")
    process = WorkerProcess(folder, context_tokens=2000, max_batch_rows=4, outbox_bytes=OUTBOX_BYTES)
    yield process
    process.end()


@pytest.fixture
async def client(thinker: WorkerProcess) -> AsyncIterator[WorkerClient]:
    async with client_of(thinker) as connected:
        await connected.is_active()
        yield connected


@dataclass
class Joined:
    """What the events of one sequence add up to."""

    reasoning: str = ""
    text: str = ""
    calls: list[pb.ToolCall] = field(default_factory=list[pb.ToolCall])
    tokens: list[pb.TokenInfo] = field(default_factory=list[pb.TokenInfo])
    counts: dict[int, int] = field(default_factory=lambda: {pb.CHANNEL_CONTENT: 0, pb.CHANNEL_REASONING: 0})
    finish: pb.Finish | None = None

    def add(self, event: pb.StreamGenerateResponse) -> None:
        assert self.finish is None, "an event behind the end of its sequence"
        if event.HasField("delta"):
            self._add_delta(event.delta)
        elif event.HasField("tool_call"):
            call = event.tool_call
            assert call.call_index == len(self.calls)
            self.calls.append(pb.ToolCall(id=call.id, name=call.name, arguments_json=call.arguments_json_delta))
        else:
            self.finish = event.sequence_finished.finish

    def _add_delta(self, delta: Any) -> None:
        assert delta.text or delta.token_count, "a delta of nothing"
        if delta.channel == pb.CHANNEL_REASONING:
            self.reasoning += delta.text
        else:
            self.text += delta.text
        self.counts[delta.channel] += delta.token_count
        self.tokens += delta.tokens


def joined(events: Sequence[pb.StreamGenerateResponse], num_sequences: int) -> list[Joined]:
    """Check the order of a stream's events and add them up."""
    assert [event.event_number for event in events] == list(range(len(events)))
    kinds = [event.WhichOneof("event") for event in events]
    assert (kinds[0], kinds[-1]) == ("started", "completed")
    assert (kinds.count("started"), kinds.count("completed")) == (1, 1)
    found = [Joined() for _ in range(num_sequences)]
    for event in events[1:-1]:
        part: Any = getattr(event, str(event.WhichOneof("event")))
        found[part.sequence_index].add(event)
    return found


def check(answer: pb.GenerateResponse, events: Sequence[pb.StreamGenerateResponse]) -> None:
    """Compare a stream with the whole answer to the same question."""
    sequences = joined(events, len(answer.sequences))
    for told, whole in zip(sequences, answer.sequences, strict=True):
        assert (told.reasoning, told.text) == (whole.reasoning, whole.text)
        assert [(call.name, call.arguments_json) for call in told.calls] == [
            (call.name, call.arguments_json) for call in whole.tool_calls
        ]
        assert told.tokens == list(whole.tokens)
        assert told.finish == whole.finish
    usage = events[-1].completed.usage
    assert sum(told.counts[pb.CHANNEL_REASONING] for told in sequences) == usage.reasoning_tokens
    assert sum(sum(told.counts.values()) for told in sequences) == usage.completion_tokens
    for name in ("completion_tokens", "reasoning_tokens", "forced_tokens"):
        assert getattr(usage, name) == getattr(answer.usage, name)


def any_spec(dice: random.Random) -> pb.GenerationSpec:
    """Return a question that may be answered in reasoning, content, calls of tools, or what a constraint wants."""
    spec = pb.GenerationSpec(
        chat=chat("hello", enable_thinking=dice.random() < 0.8),
        sampling=pb.SamplingParams(
            temperature=dice.choice([0.7, 1.5, 2.0]), seed=dice.randrange(1000), num_sequences=dice.choice([1, 1, 2, 3])
        ),
        stopping=pb.StoppingParams(
            max_tokens=dice.choice([1, 5, 30, 90, 150]),
            max_reasoning_tokens=dice.choice([0, 1, 4, 10, 40]),
            stop_strings=dice.choice([[], [], ["a"], ["\n", "zz"], [CLOSE + "{"], ['"a"'], ["</tool_"]]),
            include_stop_in_output=dice.random() < 0.3,
        ),
    )
    if dice.random() < 0.4:
        spec.output.top_logprobs = dice.randrange(3)
    elif dice.random() < 0.3:
        spec.output.token_ids = True
    match dice.randrange(4):
        case 0:
            spec.constraint.json_schema = SCHEMA
        case 1:
            spec.constraint.regex = r"(?s:.){3,40}"
        case 2:
            for name in ("f", "g"):
                spec.chat.tools.add(name=name, parameters_json_schema=SCHEMA)
            spec.chat.tool_choice.mode = dice.choice([pb.ToolChoice.MODE_AUTO, pb.ToolChoice.MODE_REQUIRED])
        case _:
            pass
    return spec


@pytest.mark.parametrize("seed", range(60))
async def test_a_stream_adds_up_to_the_whole_answer(client: WorkerClient, seed: int) -> None:
    dice = random.Random(seed)
    spec = any_spec(dice)
    asked = request(pb.StreamGenerateRequest, spec=spec)
    asked.stream_options.coalesce_tokens = dice.choice([0, 0, 2, 7, 1000])
    asked.stream_options.coalesce_interval.CopyFrom(Duration(nanos=dice.choice([0, 0, 1_000_000, 20_000_000])))

    answer = await client.ask(request(spec=spec))

    check(answer, await client.stream(asked))


async def test_a_slow_reader_gets_the_same(client: WorkerClient) -> None:
    spec = any_spec(random.Random(2))
    spec.stopping.Clear()
    spec.stopping.max_tokens, spec.stopping.max_reasoning_tokens = 900, 400
    spec.ClearField("constraint")
    spec.chat.ClearField("tools")
    spec.chat.ClearField("tool_choice")
    spec.chat.enable_thinking = True
    spec.sampling.num_sequences = 3
    spec.output.top_logprobs = 3
    answer = await client.ask(request(spec=spec))
    message = request(pb.StreamGenerateRequest, spec=spec)

    call = client.call(type(message), message.SerializeToString(), stamps(message))
    events: list[pb.StreamGenerateResponse] = []
    async for event in call:
        events.append(event)
        if len(events) % 20 == 0:
            await asyncio.sleep(0.02)  # a reader's own pace

    assert all(sequence.reasoning for sequence in answer.sequences)
    check(answer, events)


@pytest.mark.parametrize("seed", range(8))
async def test_a_stop_string_over_the_mark_ends_before_it(client: WorkerClient, seed: int) -> None:
    """What is before the stop string in the model's own text stays, in its channel."""
    spec = pb.GenerationSpec(
        chat=chat("hello"),
        constraint=pb.Constraint(regex=r"[a-z]{20}"),
        sampling=pb.SamplingParams(temperature=1.5, seed=seed),
        stopping=pb.StoppingParams(max_tokens=60, max_reasoning_tokens=8),
    )
    (free,) = (await client.ask(request(spec=spec))).sequences
    before, behind = free.reasoning[-2:], free.text[: 1 + seed % 3]
    spec.stopping.stop_strings.append(before + CLOSE + behind)

    answer = await client.ask(request(spec=spec))
    events = await client.stream(request(pb.StreamGenerateRequest, spec=spec))

    (stopped,) = answer.sequences
    assert stopped.finish.stop_string == before + CLOSE + behind
    assert (stopped.reasoning, stopped.text) == (free.reasoning[: -len(before)], "")
    check(answer, events)


async def test_a_stream_that_loses_or_swaps_something_is_caught(client: WorkerClient) -> None:
    spec = any_spec(random.Random(0))
    spec.stopping.Clear()
    spec.stopping.max_tokens, spec.stopping.max_reasoning_tokens = 90, 10
    answer = await client.ask(request(spec=spec))
    events = await client.stream(request(pb.StreamGenerateRequest, spec=spec))
    check(answer, events)

    for index in range(len(events)):
        lost = [event for place, event in enumerate(events) if place != index]
        with pytest.raises(AssertionError):
            check(answer, lost)
    deltas = [index for index, event in enumerate(events) if event.delta.text]
    first, second = next((a, b) for a, b in itertools.pairwise(deltas) if events[a].delta != events[b].delta)
    events[first].delta.text, events[second].delta.text = events[second].delta.text, events[first].delta.text
    with pytest.raises(AssertionError):
        check(answer, events)
