"""A worker whose model reasons, over its real socket."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from pomona.v1 import generation_pb2 as pb
from pomona.v1 import model_pb2

from tests.support.tiny_models import CHAT_TEMPLATE, write_llama
from tests.support.worker_client import WorkerClient, chat, client_of, request
from tests.support.worker_process import WorkerProcess

TOOLS = "{% for tool in tools or [] %}{{ tool | tojson }}<tool_call>{% endfor %}"
CALLS = "{% for m in messages %}{{ m.reasoning_content }}{{ m.tool_calls }}{{ m.name }}{% endfor %}"
ANSWER = "assistant: <think>\n{% if enable_thinking is false %}</think>{% endif %}"


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    folder = write_llama(tmp_path_factory.mktemp("checkpoint") / "tiny")
    _set_template(folder, TOOLS + CALLS + CHAT_TEMPLATE.replace("{{ 'assistant: ' }}", ANSWER))
    process = WorkerProcess(folder, context_tokens=1000, max_batch_rows=2)
    yield process
    process.end()


def _set_template(folder: Path, template: str) -> None:
    told = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**told, "chat_template": template}))


@pytest.fixture
async def client(thinker: WorkerProcess) -> AsyncIterator[WorkerClient]:
    async with client_of(thinker) as connected:
        await connected.is_active()
        yield connected


def spec(**chat_fields: bool) -> pb.GenerationSpec:
    return pb.GenerationSpec(
        chat=chat("what does <think> mean?", **chat_fields),
        sampling=pb.SamplingParams(temperature=1.5, seed=7),
        stopping=pb.StoppingParams(max_tokens=20, ignore_eos=True),
    )


async def test_the_limit_inside_the_reasoning_leaves_the_content_empty(client: WorkerClient) -> None:
    """Reported of omlx as 2457."""
    answer = await client.ask(request(spec=spec()))
    events = await client.stream(request(pb.StreamGenerateRequest, spec=spec()))

    (sequence,) = answer.sequences
    assert (sequence.text, bool(sequence.reasoning)) == ("", True)
    assert sequence.finish.reason == pb.FINISH_REASON_MAX_TOKENS
    assert answer.usage.completion_tokens == answer.usage.reasoning_tokens == 20
    deltas = [event.delta for event in events if event.HasField("delta")]
    assert {delta.channel for delta in deltas} == {pb.CHANNEL_REASONING}
    assert "".join(delta.text for delta in deltas) == sequence.reasoning
    assert events[-1].completed.usage.reasoning_tokens == 20


async def test_a_prompt_that_closes_the_reasoning_is_followed_by_content(client: WorkerClient) -> None:
    answer = await client.ask(request(spec=spec(enable_thinking=False)))

    (sequence,) = answer.sequences
    assert (bool(sequence.text), sequence.reasoning) == (True, "")
    assert answer.usage.reasoning_tokens == 0


async def test_the_worker_says_what_its_model_can_do_and_what_not(client: WorkerClient) -> None:
    async with asyncio.timeout(10):
        told = (await client.becomes(model_pb2.MODEL_STATE_ACTIVE)).model.generation

    claimed = (told.reasoning, told.json_schema, told.regex, told.lark_grammar, told.tool_calls, told.adapters)
    assert claimed == (True,) * 6
    assert not told.unavailable


def led(**fields: Any) -> pb.GenerationSpec:
    """Ask for three tokens of reasoning at most, and more of the content."""
    return pb.GenerationSpec(
        chat=fields.pop("chat", None) or chat("hello"),
        sampling=pb.SamplingParams(temperature=2, seed=3),
        stopping=pb.StoppingParams(max_tokens=60, max_reasoning_tokens=3),
        **fields,
    )


async def test_a_spent_budget_closes_the_reasoning(client: WorkerClient) -> None:
    answer = await client.ask(request(spec=led()))

    (sequence,) = answer.sequences
    assert sequence.reasoning
    assert sequence.text
    assert answer.usage.forced_tokens > 0
    # Three, and what a character that had begun may still need.
    assert 3 <= answer.usage.reasoning_tokens - answer.usage.forced_tokens <= 6


@pytest.mark.parametrize("num_sequences", [1, 2])
async def test_a_constraint_holds_behind_the_reasoning(client: WorkerClient, num_sequences: int) -> None:
    asked = led(constraint=pb.Constraint(regex="(yes|no), [a-z]{4}!"))
    asked.sampling.num_sequences = num_sequences

    answer = await client.ask(request(spec=asked))
    events = await client.stream(request(pb.StreamGenerateRequest, spec=asked))

    assert len(answer.sequences) == num_sequences
    for sequence in answer.sequences:
        assert re.fullmatch("(yes|no), [a-z]{4}!", sequence.text)
        assert sequence.reasoning
        assert sequence.finish.reason == pb.FINISH_REASON_CONSTRAINT_COMPLETE
        deltas = [event.delta for event in events if event.delta.sequence_index == sequence.sequence_index]
        content = [delta.text for delta in deltas if delta.channel == pb.CHANNEL_CONTENT]
        assert "".join(content) == sequence.text
    counts = sum(event.delta.token_count for event in events)
    assert counts == answer.usage.completion_tokens == events[-1].completed.usage.completion_tokens
    assert answer.usage.forced_tokens == events[-1].completed.usage.forced_tokens


@pytest.mark.parametrize("mode", [pb.ToolChoice.MODE_REQUIRED, pb.ToolChoice.MODE_NAMED])
async def test_a_tool_that_must_be_called_is_called_behind_the_reasoning(client: WorkerClient, mode: Any) -> None:
    asked = led()
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    for name in ("f", "g"):
        asked.chat.tools.add(name=name, parameters_json_schema=json.dumps({**schema, "additionalProperties": False}))
    asked.chat.tool_choice.mode = mode
    asked.chat.tool_choice.name = "g" if mode == pb.ToolChoice.MODE_NAMED else ""
    asked.stopping.max_tokens = 150

    answer = await client.ask(request(spec=asked))
    events = await client.stream(request(pb.StreamGenerateRequest, spec=asked))

    (sequence,) = answer.sequences
    assert sequence.reasoning
    first = sequence.tool_calls[0]
    assert first.name in {"f", "g"} if mode == pb.ToolChoice.MODE_REQUIRED else first.name == "g"
    assert first.arguments_json in {'{"a":true}', '{"a":false}'}
    streamed = [event.tool_call for event in events if event.HasField("tool_call")]
    assert [(call.name, call.arguments_json_delta) for call in streamed] == [
        (call.name, call.arguments_json) for call in sequence.tool_calls
    ]
    assert [call.call_index for call in streamed] == list(range(len(streamed)))


async def test_what_tools_and_earlier_answers_said_may_come_back(client: WorkerClient) -> None:
    call = pb.ToolCall(id="c", name="f", arguments_json='{"a": 1}')
    asked = spec()
    asked.chat.messages.add(role=pb.ROLE_ASSISTANT, text="x", reasoning="why", tool_calls=[call])
    asked.chat.messages.add(role=pb.ROLE_TOOL, text="3", tool_call_id="c")

    assert (await client.ask(request(spec=asked))).usage.completion_tokens == 20


async def test_a_constraint_of_a_model_that_never_closes_ends_at_the_limit(client: WorkerClient) -> None:
    asked = led(constraint=pb.Constraint(regex="a"))
    asked.stopping.ClearField("max_reasoning_tokens")

    (sequence,) = (await client.ask(request(spec=asked))).sequences

    assert (sequence.text, sequence.finish.reason) == ("", pb.FINISH_REASON_MAX_TOKENS)
