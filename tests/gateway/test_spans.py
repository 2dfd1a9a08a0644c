"""Spans, as a collector of OpenTelemetry gets them over gRPC."""

import contextlib
import secrets
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import structlog
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from pomona.v1 import common_pb2, generation_pb2

from gateway import spans
from gateway.ending import Ended, Times
from gateway.sections.tracing import TracingSettings
from gateway.settings import SettingsError, load_settings
from gateway.spans import make_spans
from gateway.trace import Trace
from tests.gateway.statuses import failure_of
from tests.gateway.test_server import running, settings_for
from tests.support.scripted import GENERATE, STREAM_GENERATE, write_script
from tests.support.waiting import eventually

LIMIT_S = 10.0
LOG = structlog.wrap_logger(None, processors=[structlog.testing.LogCapture()])
CLIENTS_SPAN = "00f067aa0ba902b7"
CLIENTS_TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TOLD = (("traceparent", f"00-{CLIENTS_TRACE}-{CLIENTS_SPAN}-01"),)
UNSAMPLED = (("traceparent", f"00-{CLIENTS_TRACE}-{CLIENTS_SPAN}-00"),)


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps the spans that it gets, by name."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resources: list[Any] = []

    async def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
        for one in request.resource_spans:
            self.resources.append(one.resource)
            for scope in one.scope_spans:
                self.spans += scope.spans
        return trace_service_pb2.ExportTraceServiceResponse()

    def named(self, name: str) -> Any:
        (found,) = [one for one in self.spans if one.name == name]
        return found


@contextlib.asynccontextmanager
async def collector() -> AsyncGenerator[tuple[Collector, str]]:
    kept = Collector()
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(kept, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield kept, f"http://127.0.0.1:{port}"
    finally:
        await server.stop(None)


def attributes(span: Any) -> dict[str, Any]:
    return {one.key: one.value.string_value or one.value.int_value for one in span.attributes}


async def test_the_spans_of_a_request_go_to_the_collector(tmp_path: Path) -> None:
    methods = {STREAM_GENERATE: [{"read": 1}, {"reflect": True}], GENERATE: [{"read": 1}, {"raise": True}]}
    write_script(tmp_path, methods=methods)
    async with collector() as (kept, endpoint):
        settings = settings_for(tmp_path, tracing={"endpoint": endpoint, "service_name": "mine"})
        async with running(settings) as server:
            method = server.channel.unary_stream(STREAM_GENERATE)
            body = generation_pb2.StreamGenerateRequest(model="alias-a", request_id="r1").SerializeToString()
            (seen,) = [message async for message in method(body, metadata=TOLD, timeout=LIMIT_S)]
            request = generation_pb2.GenerateRequest(model="model-a", request_id="r2")
            await failure_of(server.generation.Generate(request, metadata=UNSAMPLED, timeout=LIMIT_S))
        await eventually(lambda: len(kept.spans) >= 4, LIMIT_S)
    own, call = kept.named(STREAM_GENERATE[1:]), kept.named("call of worker")
    assert {one.trace_id.hex() for one in kept.spans} == {CLIENTS_TRACE}
    assert own.parent_span_id.hex() == CLIENTS_SPAN
    assert {one.parent_span_id for one in kept.spans if one is not own} == {own.span_id}
    assert f"00-{CLIENTS_TRACE}-{call.span_id.hex()}-01" in seen.decode()
    names = ["wait for admission", "wait for worker", "call of worker"]
    waits = [kept.named(name) for name in names]
    assert own.start_time_unix_nano == waits[0].start_time_unix_nano
    assert [one.end_time_unix_nano for one in waits[:2]] == [one.start_time_unix_nano for one in waits[1:]]
    assert waits[2].end_time_unix_nano == own.end_time_unix_nano
    assert waits[1].end_time_unix_nano - waits[1].start_time_unix_nano > 10_000_000  # the load
    assert attributes(own)["pomona.request_id"] == "r1"
    assert attributes(own)["pomona.model"] == "model-a"
    assert [event.name for event in call.events] == ["first message"]
    assert {one.key: one.value.string_value for one in kept.resources[0].attributes}["service.name"] == "mine"


class Kept:
    """A processor that keeps what it gets."""

    def __init__(self) -> None:
        self.spans: list[Any] = []

    def on_end(self, span: Any) -> None:
        self.spans.append(span)

    def shutdown(self) -> None:
        """Have nothing to send."""


def ended(trace: Trace | None, times: Times, status: str = "OK") -> Ended:
    return Ended("/a.B/C", "m", "r", status, "", times, 1, common_pb2.Usage(prompt_tokens=5), trace)


TRACE = Trace(CLIENTS_TRACE, "", secrets.token_hex(8), secrets.token_hex(8), is_sampled=True)


@pytest.mark.parametrize(
    ("times", "names"),
    [
        (Times(1, None, None, None, 2), ["a.B/C", "wait for admission"]),
        (Times(1, 1.5, None, None, 2), ["a.B/C", "wait for admission", "wait for worker"]),
        (Times(1, 1.5, 1.6, None, 2), ["a.B/C", "wait for admission", "wait for worker", "call of worker"]),
    ],
)
def test_a_request_that_went_no_further_has_no_further_spans(times: Times, names: list[str]) -> None:
    kept = Kept()
    spans.Spans(kept, "pomona", LOG).ended(ended(TRACE, times, "UNAVAILABLE"))
    assert [one.name for one in kept.spans] == names
    assert not kept.spans[0].status.is_ok
    assert kept.spans[-1].end_time == kept.spans[0].end_time


def test_what_is_not_sampled_or_has_no_trace_writes_no_span() -> None:
    kept = Kept()
    observer = spans.Spans(kept, "pomona", LOG)
    for trace in (
        None,
        Trace(CLIENTS_TRACE, CLIENTS_SPAN, is_sampled=True),
        Trace(CLIENTS_TRACE, "", "1" * 16, "2" * 16),
    ):
        observer.ended(ended(trace, Times(1, None, None, None, 2)))
    assert kept.spans == []


def test_without_the_libraries_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace.export", None)
    with pytest.raises(SettingsError, match=r"pomona\[tracing\]"):
        make_spans(TracingSettings(endpoint="http://127.0.0.1:1"), LOG)


def test_an_endpoint_is_an_address_of_http() -> None:
    with pytest.raises(SettingsError, match="http://"):
        load_settings(None, {"tracing": {"endpoint": "127.0.0.1:4317"}})


def test_nothing_of_opentelemetry_is_imported_where_no_endpoint_is_set() -> None:
    code = (
        "import sys, gateway.server; "
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'opentelemetry', 'prometheus_client'}))"
    )
    shown = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert shown.stdout.strip() == "[]"


async def test_a_collector_that_takes_nothing_holds_up_the_end_no_longer_than_its_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Stuck(Kept):
        def shutdown(self) -> None:
            released.wait(LIMIT_S)

    released = threading.Event()
    monkeypatch.setattr(spans, "LAST_SPANS_S", 0.05)
    capture = structlog.testing.LogCapture()
    await spans.Spans(Stuck(), "pomona", structlog.wrap_logger(None, processors=[capture])).close()
    released.set()
    assert [one["event"] for one in capture.entries] == ["the last spans were not sent in time"]
