"""Spans of requests for OpenTelemetry, written once a request has its status, from the times that were noted.

A trace has the RPC, its wait for admission, its wait for a worker, and the call to the worker, whose span is what the
worker is told as its caller. The libraries are imported only where an endpoint is set.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Any, Protocol

from structlog.typing import FilteringBoundLogger

from gateway.ending import UNOBSERVED, Ended
from gateway.sections.tracing import TracingSettings
from gateway.settings import SettingsError
from gateway.trace import Trace

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

EXPORT_LIMIT_S = 10.0  # for one batch
LAST_SPANS_S = 2.0  # for those that are left when the server ends
SERVER_ERRORS = frozenset({"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"})


class Processor(Protocol):
    """What takes spans, and sends them in a thread of its own."""

    def on_end(self, span: ReadableSpan) -> None:
        """Take a span; neither waits nor raises."""
        ...

    def shutdown(self) -> None:
        """Send what is left; waits."""
        ...


class Spans:
    """Observes requests and makes spans of them."""

    def __init__(self, processor: Processor, service_name: str, log: FilteringBoundLogger) -> None:
        """Give spans to `processor`, as those of a service of that name."""
        self._processor = processor
        self._log = log
        self._make = _SpanMaker(service_name)

    def ended(self, end: Ended) -> None:
        """Write the spans of a request whose trace is sampled."""
        if end.trace is None or not end.trace.span_id or not end.trace.is_sampled:
            return
        for span in self._make.spans(end, end.trace):
            self._processor.on_end(span)

    def pace(self, model: str) -> Callable[[], None]:
        """Return what is called for each message; spans do not count them."""
        return UNOBSERVED.pace(model)

    async def close(self) -> None:
        """Send what is left, but no longer than the limit."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def send() -> None:
            self._processor.shutdown()
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(done.set)

        # A thread of its own, which the end of the process does not wait for, as it does for those of the loop.
        threading.Thread(target=send, name="last-spans", daemon=True).start()
        try:
            async with asyncio.timeout(LAST_SPANS_S):
                await done.wait()
        except TimeoutError:
            self._log.warning("the last spans were not sent in time")


def make_spans(settings: TracingSettings, log: FilteringBoundLogger) -> Spans:
    """Return what sends spans to the endpoint of the settings.

    Raises:
        SettingsError: the extra `tracing` is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError:
        raise SettingsError("tracing.endpoint needs what `pip install 'pomona[tracing]'` installs") from None
    is_plain = settings.endpoint.startswith("http://")
    exporter = OTLPSpanExporter(endpoint=settings.endpoint, insecure=is_plain, timeout=EXPORT_LIMIT_S)
    processor: Any = BatchSpanProcessor(exporter, schedule_delay_millis=1000)
    return Spans(processor, settings.service_name, log)


class _SpanMaker:
    """Makes spans of what is known of a request."""

    def __init__(self, service_name: str) -> None:
        from opentelemetry.sdk import resources, trace  # noqa: PLC0415
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415
        from opentelemetry.trace import SpanContext, SpanKind, TraceFlags  # noqa: PLC0415
        from opentelemetry.trace.status import Status, StatusCode  # noqa: PLC0415

        version = metadata.version("pomona")
        self._span = trace.ReadableSpan
        self._event = trace.Event
        self._resource = resources.Resource.create({"service.name": service_name, "service.version": version})
        self._scope = InstrumentationScope("pomona", version)
        self._context = SpanContext
        self._kinds = SpanKind
        self._flags = TraceFlags
        self._failed = Status(StatusCode.ERROR)
        self._unset = Status(StatusCode.UNSET)

    def spans(self, end: Ended, trace: Trace) -> Iterator[ReadableSpan]:
        """Yield the spans of a request, its own first."""
        times, wall = end.times, _wall()
        began, over = wall(times.started_s), wall(times.ended_s)
        admitted = over if times.admitted_s is None else wall(times.admitted_s)
        own = self._of(trace, trace.span_id)
        parent = self._of(trace, trace.parent_id) if trace.parent_id else None
        kind = self._kinds.SERVER
        status = self._failed if end.status in SERVER_ERRORS else self._unset
        name = end.method.removeprefix("/")
        yield self._made(name, own, parent, (began, over), kind=kind, attributes=_facts(end), status=status)
        yield self._made("wait for admission", self._new(trace), own, (began, admitted))
        if times.admitted_s is None:
            return
        called = over if times.called_s is None else wall(times.called_s)
        yield self._made("wait for worker", self._new(trace), own, (admitted, called))
        if times.called_s is None:
            return
        first = () if times.answered_s is None else (self._event("first message", timestamp=wall(times.answered_s)),)
        call = self._of(trace, trace.call_id)
        yield self._made("call of worker", call, own, (called, over), kind=self._kinds.CLIENT, events=first)

    def _made(self, name: str, context: Any, parent: Any, times: tuple[int, int], **more: Any) -> ReadableSpan:
        more.setdefault("status", self._unset)
        return self._span(
            name,
            context=context,
            parent=parent,
            resource=self._resource,
            start_time=times[0],
            end_time=times[1],
            instrumentation_scope=self._scope,
            **more,
        )

    def _new(self, trace: Trace) -> Any:
        return self._of(trace, secrets.token_hex(8))

    def _of(self, trace: Trace, span_id: str) -> Any:
        flags = self._flags(self._flags.SAMPLED)
        return self._context(int(trace.trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=flags)


def _wall() -> Callable[[float], int]:
    """Return what turns a time of the monotonic clock into nanoseconds since 1970."""
    offset_ns = time.time_ns() - time.monotonic_ns()
    return lambda seconds: round(seconds * 1e9) + offset_ns


def _facts(end: Ended) -> Mapping[str, str | int]:
    """Return what a span tells of a request: no prompt, no answer."""
    service, _, method = end.method.removeprefix("/").rpartition("/")
    facts: dict[str, str | int] = {
        "rpc.system": "grpc",
        "rpc.service": service,
        "rpc.method": method,
        "rpc.grpc.status": end.status,
        "pomona.request_id": end.request_id,
        "pomona.model": end.model,
        "pomona.reason": end.reason,
        "pomona.messages": end.events_sent,
        "gen_ai.usage.input_tokens": end.usage.prompt_tokens,
        "gen_ai.usage.output_tokens": end.usage.completion_tokens,
    }
    return {name: value for name, value in facts.items() if value != ""}
