"""A worker whose model writes calls of tools with special tokens, as Mistral's do, over its real socket."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from pomona.v1 import generation_pb2 as pb
from tokenizers import AddedToken, Tokenizer

from tests.support.tiny_models import CHAT_TEMPLATE, write_llama
from tests.support.worker_client import WorkerClient, chat, client_of, request
from tests.support.worker_process import WorkerProcess

MARKS = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
TOOLS = "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
CALLS = (
    "{% for m in messages %}{% for call in m.tool_calls or [] %}"
    "[TOOL_CALLS]{{ call.function.name }}[ARGS]{{ call.function.arguments | tojson }}{% endfor %}{% endfor %}"
)
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}, "b": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
REQUIRED, NAMED = pb.ToolChoice.MODE_REQUIRED, pb.ToolChoice.MODE_NAMED


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    folder = write_llama(tmp_path_factory.mktemp("checkpoint") / "tiny")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    tokenizer.save(str(folder / "tokenizer.json"))
    told = json.loads((folder / "tokenizer_config.json").read_text())
    told["chat_template"] = TOOLS + CALLS + CHAT_TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    process = WorkerProcess(folder, context_tokens=2000, max_batch_rows=4)
    yield process
    process.end()


@pytest.fixture
async def client(caller: WorkerProcess) -> AsyncIterator[WorkerClient]:
    async with client_of(caller) as connected:
        await connected.is_active()
        yield connected


def calling(mode: Any, seed: int, max_tokens: int = 200) -> pb.GenerationSpec:
    schema = json.dumps(SCHEMA)
    tools = [pb.ToolSpec(name=name, parameters_json_schema=schema) for name in ("read", "write")]
    choice = pb.ToolChoice(mode=mode, name="write" if mode == NAMED else "")
    return pb.GenerationSpec(
        chat=chat("hello", tools=tools, tool_choice=choice),
        sampling=pb.SamplingParams(temperature=2, seed=seed, num_sequences=3),
        stopping=pb.StoppingParams(max_tokens=max_tokens),
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mode", [REQUIRED, NAMED])
async def test_a_tool_that_must_be_called_is(client: WorkerClient, mode: Any, seed: int) -> None:
    answer = await client.ask(request(spec=calling(mode, seed)))
    events = await client.stream(request(pb.StreamGenerateRequest, spec=calling(mode, seed)))

    for sequence in answer.sequences:
        assert sequence.text == ""
        assert sequence.tool_calls
        for call in sequence.tool_calls:
            assert call.name in ({"read", "write"} if mode == REQUIRED else {"write"})
            assert set(json.loads(call.arguments_json)) == {"a", "b"}
        assert len({call.id for call in sequence.tool_calls}) == len(sequence.tool_calls)
        streamed = [event.tool_call for event in events if event.HasField("tool_call")]
        own = [call for call in streamed if call.sequence_index == sequence.sequence_index]
        assert [(call.name, call.arguments_json_delta) for call in own] == [
            (call.name, call.arguments_json) for call in sequence.tool_calls
        ]
        assert [call.call_index for call in own] == list(range(len(own)))
        assert sequence.finish.reason in {pb.FINISH_REASON_TOOL_CALL, pb.FINISH_REASON_MAX_TOKENS}
    assert answer.usage.forced_tokens > 0


async def test_a_call_that_the_limit_cuts_off_is_content_marks_and_all(client: WorkerClient) -> None:
    answer = await client.ask(request(spec=calling(NAMED, 1, max_tokens=9)))
    events = await client.stream(request(pb.StreamGenerateRequest, spec=calling(NAMED, 1, max_tokens=9)))

    texts = ["", "", ""]
    for event in events:
        texts[event.delta.sequence_index] += event.delta.text
    assert [sequence.text for sequence in answer.sequences] == texts
    for sequence in answer.sequences:
        assert sequence.text.startswith("[TOOL_CALLS]write[ARGS]{")
        assert (list(sequence.tool_calls), sequence.finish.reason) == ([], pb.FINISH_REASON_MAX_TOKENS)


async def test_marks_are_hidden_where_no_tool_was_offered(client: WorkerClient) -> None:
    spec = calling(pb.ToolChoice.MODE_NONE, 1, max_tokens=3)
    # The marks lie behind the end token.
    spec.sampling.logit_bias[261] = 1000

    (first, *_) = (await client.ask(request(spec=spec))).sequences

    assert (first.text, list(first.tool_calls)) == ("", [])
