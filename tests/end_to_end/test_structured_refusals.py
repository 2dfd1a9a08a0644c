"""What a client may get wrong about constraints and tools, or mean to, is told, and the next request is served."""

import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from pomona.v1 import generation_pb2 as pb
from pomona.v1 import generation_pb2_grpc

from tests.docs.thinking_model import write_thinking_llama
from tests.support.served import served
from tests.support.worker_client import Refusal, chat, refusal_of
from tests.worker.constraints.hostile import all_hostile
from worker.constraints.limits import TRIAL_CPU_S

# A grammar is judged after so much computing; the rest is for a machine that does other things too.
LIMIT_S = TRIAL_CPU_S + 10.0  # The figure is a second on a machine that does nothing else.
RPC_TIMEOUT_S = 30.0
TOO_LONG: dict[str, Any] = {"enum": ["x" * 50 + str(index) for index in range(90_000)]}
HOSTILE = {(hostile.kind, hostile.name): hostile.text for hostile in all_hostile()}
FIELDS = ("json_schema", "regex", "lark_grammar", "choices.choices")
SCHEMA, REGEX, LARK, CHOICES = (f"spec.constraint.{field}" for field in FIELDS)
INVALID, TOO_COMPLEX = "CONSTRAINT_INVALID", "CONSTRAINT_TOO_COMPLEX"

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Wrong(NamedTuple):
    """A request that is refused, with which reason, and for which field."""

    name: str
    spec: pb.GenerationSpec
    reason: str
    field: str


def constrained(**constraint: Any) -> pb.GenerationSpec:
    return pb.GenerationSpec(prompt="ab", constraint=pb.Constraint(**constraint))


def schema(name: str) -> pb.GenerationSpec:
    return constrained(json_schema=HOSTILE["json_schema", name])


def lark(name: str) -> pb.GenerationSpec:
    return constrained(lark_grammar=HOSTILE["lark", name])


def with_tools(*names: str, choice: pb.ToolChoice | None = None) -> pb.GenerationSpec:
    return pb.GenerationSpec(chat=chat("hello", tools=[pb.ToolSpec(name=name) for name in names], tool_choice=choice))


NOBODY = pb.ToolChoice(mode=pb.ToolChoice.MODE_NAMED, name="h")
MANY = pb.StringChoices(choices=[f"choice {index}" for index in range(100_000)])
WRONG = (
    Wrong("a schema that is itself", schema("it refers to itself"), INVALID, SCHEMA),
    Wrong("a schema without an end", schema("it never ends"), INVALID, SCHEMA),
    Wrong("a schema that intersects itself", schema("it intersects itself"), TOO_COMPLEX, SCHEMA),
    Wrong("a product of alternatives", schema("a product of alternatives"), TOO_COMPLEX, SCHEMA),
    Wrong("a tree of intersections", schema("a tree of intersections"), TOO_COMPLEX, SCHEMA),
    Wrong("states that double", schema("doubling states, counted"), TOO_COMPLEX, SCHEMA),
    Wrong("5 MB of schema", constrained(json_schema=json.dumps(TOO_LONG)), TOO_COMPLEX, SCHEMA),
    Wrong("no schema", constrained(json_schema="{"), INVALID, SCHEMA),
    Wrong("an unknown keyword", constrained(json_schema='{"uniqueItems": true}'), "UNSUPPORTED_OPTION", SCHEMA),
    Wrong("no regular expression", constrained(regex="(("), INVALID, REGEX),
    Wrong("a pattern without a match", constrained(regex=r"[^\s\S]"), INVALID, REGEX),
    Wrong("a grammar of nothing", lark("nothing fits"), INVALID, LARK),
    Wrong("a chain of rules", lark("a chain of rules"), TOO_COMPLEX, LARK),
    Wrong("intersections", lark("intersections"), TOO_COMPLEX, LARK),
    Wrong("100,000 choices", constrained(choices=MANY), TOO_COMPLEX, CHOICES),
    Wrong("nothing to choose", constrained(choices=pb.StringChoices()), INVALID, CHOICES),
    Wrong("a tool without a name", with_tools("f", ""), "INVALID_FIELD", "spec.chat.tools[1].name"),
    Wrong("two tools of one name", with_tools("f", "g", "f"), "INVALID_FIELD", "spec.chat.tools[2].name"),
    Wrong("a choice of no tool", with_tools("f", "g", choice=NOBODY), "INVALID_FIELD", "spec.chat.tool_choice.name"),
)  # fmt: skip


class Client:
    """Calls a server as any client does."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.stub: Any = generation_pb2_grpc.GenerationServiceStub(channel)

    async def ask(self, spec: pb.GenerationSpec) -> pb.GenerateResponse:
        return await self.stub.Generate(pb.GenerateRequest(model="tiny", spec=spec), timeout=RPC_TIMEOUT_S)

    async def refused(self, spec: pb.GenerationSpec, *, streams: bool) -> Refusal:
        try:
            if streams:
                request = pb.StreamGenerateRequest(model="tiny", spec=spec)
                said = [each async for each in self.stub.StreamGenerate(request, timeout=RPC_TIMEOUT_S)]
            else:
                said = [await self.ask(spec)]
        except grpc.aio.AioRpcError as error:
            return refusal_of(error)
        raise AssertionError(f"not refused: {said}")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = write_thinking_llama(tmp_path_factory.mktemp("thinking") / "checkpoint")
    with served("--model", f"tiny={folder}") as server:
        yield server.address


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(address: str) -> AsyncIterator[Client]:
    async with grpc.aio.insecure_channel(address) as channel:
        connected = Client(channel)
        await connected.ask(plain())  # loads the model
        await connected.ask(constrained(regex="a"))  # starts the child that tries grammars
        yield connected


def plain() -> pb.GenerationSpec:
    return pb.GenerationSpec(prompt="ab", stopping=pb.StoppingParams(max_tokens=3, ignore_eos=True))


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.name)
async def test_what_is_wrong_has_its_reason_in_time_and_the_worker_lives(client: Client, wrong: Wrong) -> None:
    began = time.perf_counter()
    refusal = await client.refused(wrong.spec, streams=False)
    took_s = time.perf_counter() - began

    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    assert (refusal.reason, refusal.field) == (wrong.reason, wrong.field)
    assert took_s < LIMIT_S
    assert (await client.refused(wrong.spec, streams=True)) == refusal
    assert (await client.ask(plain())).usage.completion_tokens == 3
    print(f"{wrong.name}: {took_s * 1e3:.0f} ms: {refusal.message}")


@pytest.mark.parametrize("pattern", [r"(a+)+$", r"((((((a*)*)*)*)*)*)*b", r"(a|b)*a(a|b){40}"])
async def test_a_regex_that_others_backtrack_over_is_as_good_as_any(client: Client, pattern: str) -> None:
    spec = constrained(regex=pattern)
    spec.stopping.max_tokens = 40
    spec.chat.CopyFrom(chat("hello", enable_thinking=False))
    began = time.perf_counter()

    (sequence,) = (await client.ask(spec)).sequences

    assert set(sequence.text) <= set("ab")
    assert time.perf_counter() - began < LIMIT_S


async def test_reasoning_that_never_ends_is_cut_where_the_request_says(client: Client) -> None:
    spec = pb.GenerationSpec(chat=chat("hello"), constraint=pb.Constraint(regex="yes|no"))
    spec.stopping.max_tokens = 60

    (cut,) = (await client.ask(spec)).sequences
    spec.stopping.max_reasoning_tokens = 8
    closed = await client.ask(spec)

    assert (cut.text, bool(cut.reasoning), cut.finish.reason) == ("", True, pb.FINISH_REASON_MAX_TOKENS)
    assert closed.sequences[0].text in {"yes", "no"}
    assert closed.sequences[0].reasoning
    assert closed.usage.reasoning_tokens <= 8 + 4 + len("</think>")
