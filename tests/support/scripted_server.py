"""A real gRPC server that answers by a script, for clients under test.

It runs on threads of its own, so that a client may block in the thread of the test.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2_grpc
from grpc_status import rpc_status
from pomona.v1 import embedding_pb2_grpc, generation_pb2_grpc, model_pb2_grpc, server_pb2_grpc, transcription_pb2_grpc
from pomona.v1 import generation_pb2 as g

HOLD_LIMIT_S = 20.0


@dataclass
class Call:
    """One call that the server got; the request of a client's stream is an iterator."""

    method: str
    request: Any
    metadata: dict[str, str]
    is_ended_by_client: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class Fail:
    """A step of a script: end with this status."""

    code: grpc.StatusCode
    message: str
    reason: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    details: tuple[Message, ...] = ()
    trailers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Hold:
    """A step of a script: wait until `until` is set, or the client goes."""

    until: threading.Event = field(default_factory=threading.Event)


Step = Message | Fail | Hold
Script = Iterable[Step] | Callable[[Any], Iterable[Step]]


class ScriptedServer:
    """Serves the public services; `scripts` maps a method's name to its steps, or to a function of the request."""

    def __init__(
        self,
        scripts: dict[str, Script] | None = None,
        *,
        address: str = "127.0.0.1:0",
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        self.scripts: dict[str, Script] = scripts or {}
        self.calls: list[Call] = []
        self._server = grpc.server(ThreadPoolExecutor(max_workers=16), options=[("grpc.so_reuseport", 0)])
        for bases, add in _SERVICES:
            add(_servicer(self, bases), self._server)
        if credentials is None:
            port = self._server.add_insecure_port(address)
        else:
            port = self._server.add_secure_port(address, credentials)
        self.address = address if address.startswith("unix:") else f"127.0.0.1:{port}"

    def __enter__(self) -> "ScriptedServer":
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop(grace=0).wait(5)

    def call(self, method: str) -> Call:
        """Return the only call of `method`."""
        (found,) = [call for call in self.calls if call.method == method]
        return found

    def play(self, method: str, request: Any, context: grpc.ServicerContext) -> Iterator[Message]:
        """Run the script of `method`."""
        call = Call(method, request, {key: str(value) for key, value in context.invocation_metadata()})
        context.add_callback(call.is_ended_by_client.set)
        self.calls.append(call)
        script = self.scripts.get(method)
        if script is None:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{method} is not in the script")
        for step in script(request) if callable(script) else script:
            if isinstance(step, Fail):
                _abort(step, context)
            elif isinstance(step, Hold):
                _hold(step, context)
            else:
                yield step


def delta(text: str) -> g.StreamGenerateResponse:
    """Return an event with one more token."""
    return g.StreamGenerateResponse(delta=g.TokenDelta(text=text, channel=g.CHANNEL_CONTENT, token_count=1))


def answer(*texts: str, reason: g.FinishReason.ValueType = g.FINISH_REASON_EOS) -> list[Step]:
    """Return the events of a whole answer, numbered."""
    events = [
        g.StreamGenerateResponse(started=g.GenerationStarted(request_id="r1", prompt_tokens=7, seed=1)),
        *(delta(text) for text in texts),
        g.StreamGenerateResponse(sequence_finished=g.SequenceFinished(finish=g.Finish(reason=reason))),
        g.StreamGenerateResponse(completed=g.GenerationCompleted()),
    ]
    completed = events[-1].completed
    completed.usage.prompt_tokens, completed.usage.completion_tokens = 7, len(texts)
    completed.timing.decode_us = 500_000
    for number, event in enumerate(events):
        event.event_number = number
    return list(events)


_SERVICES: tuple[tuple[type, Callable[[Any, Any], None]], ...] = (
    (model_pb2_grpc.ModelServiceServicer, model_pb2_grpc.add_ModelServiceServicer_to_server),
    (model_pb2_grpc.AdapterServiceServicer, model_pb2_grpc.add_AdapterServiceServicer_to_server),
    (generation_pb2_grpc.GenerationServiceServicer, generation_pb2_grpc.add_GenerationServiceServicer_to_server),
    (embedding_pb2_grpc.EmbeddingServiceServicer, embedding_pb2_grpc.add_EmbeddingServiceServicer_to_server),
    (
        transcription_pb2_grpc.TranscriptionServiceServicer,
        transcription_pb2_grpc.add_TranscriptionServiceServicer_to_server,
    ),
    (server_pb2_grpc.ServerServiceServicer, server_pb2_grpc.add_ServerServiceServicer_to_server),
    (server_pb2_grpc.AdminServiceServicer, server_pb2_grpc.add_AdminServiceServicer_to_server),
    (health_pb2_grpc.HealthServicer, health_pb2_grpc.add_HealthServicer_to_server),
)
_STREAMS = {"StreamGenerate", "StreamTranscribe", "WatchModels", "StreamLogs", "WatchStats", "PullModel"}


def _servicer(server: ScriptedServer, base: type) -> Any:
    methods = {name: _method(server, name) for name in vars(base) if not name.startswith("_")}
    return type("Scripted", (base,), methods)()


def _method(server: ScriptedServer, name: str) -> Callable[..., Any]:
    def stream(_: object, request: Any, context: grpc.ServicerContext) -> Iterator[Message]:
        return server.play(name, request, context)

    def unary(_: object, request: Any, context: grpc.ServicerContext) -> Message:
        return next(server.play(name, request, context))

    return stream if name in _STREAMS else unary


def _hold(step: Hold, context: grpc.ServicerContext) -> None:
    deadline = time.monotonic() + HOLD_LIMIT_S
    while context.is_active() and not step.until.wait(0.01):
        if time.monotonic() > deadline:
            context.abort(grpc.StatusCode.INTERNAL, "held for too long")


def _abort(step: Fail, context: grpc.ServicerContext) -> None:
    details = list(step.details)
    if step.reason:
        details.insert(0, error_details_pb2.ErrorInfo(reason=step.reason, domain="pomona", metadata=step.metadata))
    packed = [any_pb2.Any() for _ in details]
    for target, detail in zip(packed, details, strict=True):
        target.Pack(detail)
    code = code_pb2.Code.Value(step.code.name)
    status = rpc_status.to_status(status_pb2.Status(code=code, message=step.message, details=packed))
    context.abort_with_status(_Status(status.code, status.details, (*status.trailing_metadata, *step.trailers)))


@dataclass(frozen=True)
class _Status(grpc.Status):
    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, str | bytes], ...]
