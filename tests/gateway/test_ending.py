"""The line in the log about the end of an RPC."""

import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from pomona.v1 import common_pb2

from gateway.ending import USAGE_KEY, Ending
from gateway.envelope import Envelope
from gateway.logs import LogRing, make_log
from gateway.request_errors import InvalidField, Violation
from gateway.status import DETAILS_KEY, status_of
from tests.gateway.relay_calls import LIMIT_S
from tests.gateway.statuses import ended, failure_of
from tests.support.scripted_worker import BEGUN, MODEL, UNARY_STREAM, RelayUnderTest, relay_under_test, request
from tests.support.waiting import eventually


class Clock:
    def __init__(self, *times_s: float) -> None:
        self.times_s = list(times_s)

    def __call__(self) -> float:
        return self.times_s.pop(0)


def line_of(ending: Ending, model: str = "m", request_id: str = "r") -> dict[str, Any]:
    stream = io.StringIO()
    ending.write(make_log(LogRing(1), "info", "json", stream), model, request_id, 3)
    return json.loads(stream.getvalue())


def details(*messages: Any) -> bytes:
    packed = [any_pb2.Any() for _ in messages]
    for one, message in zip(packed, messages, strict=True):
        one.Pack(message)
    return status_pb2.Status(code=3, details=packed).SerializeToString()


def test_an_answer_is_told_with_its_times() -> None:
    ending = Ending("/a/B", Clock(10.0, 10.25, 10.5, 12.5))
    ending.called()
    ending.answered()
    ending.ended(grpc.StatusCode.OK)
    line = line_of(ending)
    assert (line["event"], line["status"], line["model"], line["request_id"]) == ("request ended", "OK", "m", "r")
    times = {name: value for name, value in line.items() if name.endswith("_ms")}
    assert times == {"duration_ms": 2500.0, "queue_ms": 250.0, "first_message_ms": 250.0, "rest_ms": 2000.0}
    assert not {"reason", "field", "prompt_tokens"} & set(line)


def test_an_end_that_nobody_noted_is_a_cancellation() -> None:
    assert line_of(Ending("/a/B"))["status"] == "CANCELLED"


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ('spec.chat.template_vars["what I said"]', "spec.chat.template_vars[]"),
        (r'spec.chat.template_vars["a \"]\\"].list_value.values[3]', "spec.chat.template_vars[].list_value.values[3]"),
        ('spec.chat.template_vars["cut off in the mid', "spec.chat.template_vars[]"),
        ("spec.chat.messages[0].role", "spec.chat.messages[0].role"),
    ],
)
def test_a_field_is_told_without_the_words_of_its_client(path: str, told: str) -> None:
    ending = Ending("/a/B")
    status = status_of(InvalidField((Violation(path, "is wrong"),)))
    ending.ended(status.code, status.trailers)
    assert line_of(ending)["field"] == told


def test_a_refusal_is_told_with_its_reason_and_first_field() -> None:
    ending = Ending("/a/B")
    ending.addressed(Envelope("asked-for", "chosen", 0))
    violations = (Violation("spec.sampling.top_p", "is not in range"), Violation("spec.sampling.top_k", "neither"))
    status = status_of(InvalidField(violations))
    ending.ended(status.code, status.trailers)
    line = line_of(ending, model="", request_id="")
    assert (line["status"], line["reason"], line["field"]) == (
        "INVALID_ARGUMENT",
        "INVALID_FIELD",
        "spec.sampling.top_p",
    )
    assert (line["model"], line["request_id"]) == ("asked-for", "chosen")


def test_tokens_of_a_failure_are_told_where_its_trailers_have_them() -> None:
    ending = Ending("/a/B")
    usage = common_pb2.Usage(prompt_tokens=7, completion_tokens=3)
    info = error_details_pb2.ErrorInfo(reason="WORKER_STALLED")
    ending.ended(
        grpc.StatusCode.UNAVAILABLE, ((USAGE_KEY, usage.SerializeToString()), (DETAILS_KEY, details(info)), ("x", "y"))
    )
    line = line_of(ending)
    assert (line["prompt_tokens"], line["completion_tokens"], line["reason"]) == (7, 3, "WORKER_STALLED")
    assert "field" not in line


@pytest.mark.parametrize("key", [USAGE_KEY, DETAILS_KEY])
def test_trailers_that_are_no_messages_do_no_harm(key: str) -> None:
    ending = Ending("/a/B")
    ending.ended(grpc.StatusCode.INTERNAL, ((key, b"\xff"),))
    assert line_of(ending)["status"] == "INTERNAL"


async def last_line(relay: RelayUnderTest) -> dict[str, Any]:
    def lines() -> list[Any]:
        return [line for line in relay.ring.past(100) if line.event == "request ended"]

    await eventually(lambda: bool(lines()))
    return {"model": lines()[-1].model, **lines()[-1].fields}


async def test_a_refusal_of_the_gateway_names_the_model_that_was_asked_for(tmp_path: Path) -> None:
    async with relay_under_test(tmp_path) as relay:
        await failure_of(relay.call(UNARY_STREAM)(request("nope", "r-1"), timeout=LIMIT_S))
        line = await last_line(relay)
    assert (line["model"], line["request_id"]) == ("nope", "r-1")
    assert (line["status"], line["reason"]) == ("NOT_FOUND", "MODEL_NOT_FOUND")
    assert "queue_ms" not in line


async def test_a_refusal_of_the_worker_names_its_field(tmp_path: Path) -> None:
    async def refuses(body: bytes, context: Any) -> AsyncIterator[bytes]:
        await context.abort(*status_of(InvalidField((Violation("spec.stopping.max_tokens", "is 0"),))))
        yield b""

    async with relay_under_test(tmp_path, {UNARY_STREAM: refuses}) as relay:
        await failure_of(relay.call(UNARY_STREAM)(request(), timeout=LIMIT_S))
        line = await last_line(relay)
    assert (line["model"], line["reason"], line["field"]) == (MODEL, "INVALID_FIELD", "spec.stopping.max_tokens")
    assert "queue_ms" in line


async def test_trailers_between_worker_and_gateway_stay_there(tmp_path: Path) -> None:
    async def answers(body: bytes, context: Any) -> AsyncIterator[bytes]:
        await context.send_initial_metadata(BEGUN)
        context.set_trailing_metadata((("x-pomona-hidden", "1"), ("shown", "2")))
        yield b"a"

    async with relay_under_test(tmp_path, {UNARY_STREAM: answers}) as relay:
        call = relay.call(UNARY_STREAM)(request(), timeout=LIMIT_S)
        await ended(call)
        trailers = {key for key, _ in await call.trailing_metadata()}
        line = await last_line(relay)
    assert "shown" in trailers
    assert "x-pomona-hidden" not in trailers
    assert {"queue_ms", "first_message_ms", "rest_ms", "duration_ms"} <= set(line)
