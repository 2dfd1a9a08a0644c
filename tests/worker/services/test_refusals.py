"""Bad input is refused by its field, and the worker lives on."""

from typing import Any

import grpc
import pytest
from pomona.v1 import generation_pb2 as pb

from tests.support.tiny_models import VOCAB_SIZE
from tests.support.worker_client import WorkerClient, chat, request, stamps

from .calls import CONTEXT_TOKENS, MAX_RESPONSE_BYTES, answers_still, long_request

INVALID = grpc.StatusCode.INVALID_ARGUMENT


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
    "a grammar that is none": (spec(constraint={"regex": "a("}), "CONSTRAINT_INVALID", "spec.constraint.regex"),
    "a schema that is too large": (
        spec(constraint={"json_schema": "x" * (1 << 21)}),
        "CONSTRAINT_TOO_COMPLEX",
        "spec.constraint.json_schema",
    ),
    "a grammar without an end": (
        spec(constraint={"regex": "a*"}, stopping={"ignore_eos": True}),
        "INVALID_FIELD",
        "spec.stopping.ignore_eos",
    ),
    "tools that the template does not read": (
        spec(chat=pb.ChatInput(messages=chat("hi").messages, tools=[pb.ToolSpec(name="f")])),
        "UNSUPPORTED_OPTION",
        "spec.chat.tools",
    ),
    "two tools of one name": (
        spec(chat=pb.ChatInput(messages=chat("hi").messages, tools=[pb.ToolSpec(name="f")] * 2)),
        "INVALID_FIELD",
        "spec.chat.tools[1].name",
    ),
    "a budget of a model that does not reason": (
        stopping(max_reasoning_tokens=3),
        "UNSUPPORTED_OPTION",
        "spec.stopping.max_reasoning_tokens",
    ),
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
