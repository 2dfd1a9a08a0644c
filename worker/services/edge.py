"""What every call on the worker's socket passes: credentials first, the stamps of the gateway, and failures last."""

import asyncio
import contextlib
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import Message

from worker import logs
from worker.envelope import Envelope
from worker.errors import CredentialsInvalid, MalformedRequest, ResponseTooLarge, WorkerError
from worker.events import Usage
from worker.failures import packed_usage, status_of

SECRET_KEY = "x-pomona-secret"  # noqa: S105  (the key's name)
MODEL_KEY = "x-pomona-model"
REQUEST_ID_KEY = "x-pomona-request-id"
PRIORITY_KEY = "x-pomona-priority"
PRINCIPAL_KEY = "x-pomona-principal"
GROUP_KEY = "x-pomona-group"
TRACEPARENT_KEY = "traceparent"
OWN_USAGE_KEY = "x-pomona-usage-bin"  # for the gateway alone: its clients have it from the answer's last message
# What ends the call or the process, and is no failure of a request; all else is, a panic of native code among it.
PASSING = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit)
# What the library raises where something is sent in a call that is over.
CALLER_GONE = grpc.aio.InternalError
BEGUN = (("x-pomona-begun", "1"),)

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"


def _no_end() -> WorkerError | None:
    return None


@dataclass(slots=True)
class Call:
    """One call as its service sees it.

    Attributes:
        context: of gRPC.
        stamps: metadata that the gateway set, by key.
        usage: what a request consumed; goes into the trailers of its status.
        take_end: tells, once, with what the call was ended from here, where that cancelled it and not its caller.
    """

    context: Context
    stamps: dict[str, str]
    usage: Usage | None = None
    take_end: Callable[[], WorkerError | None] = _no_end

    @property
    def principal(self) -> str:
        """Who called the gateway."""
        return self.stamps.get(PRINCIPAL_KEY, "")

    @property
    def group(self) -> str:
        """Whose cached prompts the caller may share; without one, its own."""
        return self.stamps.get(GROUP_KEY, self.principal)

    def time_remaining(self) -> float | None:
        """Return the seconds until the caller's deadline; None where there is none."""
        return self.context.time_remaining()

    def note(self) -> None:
        """Have the lines that this call's task logs tell whose they are."""
        facts = {"request_id": self.stamps.get(REQUEST_ID_KEY, ""), "trace_id": self._trace_id()}
        logs.concern({name: value for name, value in facts.items() if value})

    def _trace_id(self) -> str:
        parts = self.stamps.get(TRACEPARENT_KEY, "").split("-")
        return parts[1] if len(parts) > 1 else ""

    def tell_usage(self) -> None:
        """Put what the request consumed into the trailers of its answer."""
        if self.usage is not None:
            self.context.set_trailing_metadata(((OWN_USAGE_KEY, packed_usage(self.usage)),))

    def check_envelope(self, envelope: Envelope, model: str) -> None:
        """Refuse a body that says something else than the gateway read in it.

        Raises:
            MalformedRequest: it does, or it is for another model than this worker's.
        """
        read = (self.stamps.get(MODEL_KEY), self.stamps.get(REQUEST_ID_KEY), self.stamps.get(PRIORITY_KEY))
        if read != (envelope.model, envelope.request_id, str(envelope.priority)) or envelope.model != model:
            raise MalformedRequest("the request's first fields differ from what the gateway read in them")

    async def begin(self) -> None:
        """Send the initial metadata, which says that work has begun or that the reader is about to be told something.

        It is never empty: a call that breaks before shows empty metadata too.
        """
        await self.context.send_initial_metadata(BEGUN)

    async def receive(self) -> bytes | None:
        """Return the caller's next message, where it streams them; None when it has sent all."""
        message: Any = await self.context.read()  # at the end, an object that its stubs do not know
        return message if isinstance(message, bytes) else None

    async def send(self, message: Message) -> None:
        """Send one message of a stream; waits while the caller's window is full."""
        await self.context.write(message.SerializeToString())


@dataclass(frozen=True, slots=True)
class Edge:
    """Makes handlers of methods that take raw bytes and may raise anything.

    Attributes:
        secret: what the gateway shows on each call.
        model: canonical name, for errors.
        max_response_bytes: of a unary answer.
    """

    secret: str
    model: str
    max_response_bytes: int

    def unary(self, answer: Callable[[bytes, Call], Awaitable[Message]]) -> "grpc.RpcMethodHandler[bytes, bytes]":
        """Make a handler that sends what `answer` returns."""

        async def handle(body: bytes, context: Context) -> bytes:
            call = _call_of(context)
            try:
                self._authenticate(call)
                message = await answer(body, call)
                call.tell_usage()
                return self._serialized(message)
            except BaseException as error:  # noqa: BLE001  (the servicer's edge: every failure becomes a status)
                await self._abort(call, error)

        return grpc.unary_unary_rpc_method_handler(handle)  # pyright: ignore[reportArgumentType]

    def stream(self, answer: Callable[[bytes, Call], Awaitable[None]]) -> "grpc.RpcMethodHandler[bytes, bytes]":
        """Make a handler of a method that sends its messages itself."""

        async def handle(body: bytes, context: Context) -> None:
            call = _call_of(context)
            try:
                self._authenticate(call)
                await answer(body, call)
                call.tell_usage()
            except BaseException as error:  # noqa: BLE001  (the servicer's edge: every failure becomes a status)
                await self._abort(call, error)

        return grpc.unary_stream_rpc_method_handler(handle)  # pyright: ignore[reportArgumentType]

    def duplex(self, answer: Callable[[Call], Awaitable[None]]) -> "grpc.RpcMethodHandler[bytes, bytes]":
        """Make a handler of a method whose messages come and go as streams; `Call.receive` takes the caller's."""

        async def handle(_messages: object, context: Context) -> None:
            call = _call_of(context)
            try:
                self._authenticate(call)
                await answer(call)
                call.tell_usage()
            except BaseException as error:  # noqa: BLE001  (the servicer's edge: every failure becomes a status)
                await self._abort(call, error)

        return grpc.stream_stream_rpc_method_handler(handle)  # pyright: ignore[reportArgumentType]

    def _serialized(self, message: Message) -> bytes:
        body = message.SerializeToString()
        if len(body) > self.max_response_bytes:
            raise ResponseTooLarge(self.max_response_bytes)
        return body

    def _authenticate(self, call: Call) -> None:
        shown = call.stamps.get(SECRET_KEY, "")
        if not hmac.compare_digest(shown.encode(), self.secret.encode()):
            raise CredentialsInvalid
        call.note()

    async def _abort(self, call: Call, error: BaseException) -> NoReturn:
        """Tell the caller what failed, unless it is gone.

        Raises:
            CancelledError: always, once that is done, or something else that is no failure of the request.
        """
        if isinstance(error, asyncio.CancelledError):
            error = call.take_end() or error
        if isinstance(error, PASSING):
            raise error
        if not isinstance(error, CALLER_GONE):
            failure = status_of(error, model=self.model, usage=call.usage)
            with contextlib.suppress(CALLER_GONE):
                await call.context.abort(failure.code, failure.message, failure.trailers)
        raise asyncio.CancelledError from None


def _call_of(context: Context) -> Call:
    metadata = context.invocation_metadata() or ()
    return Call(context, {key: value for key, value in metadata if isinstance(value, str)})
