"""Lets callers in: every RPC passes here first when the server has tokens; what is not known to be allowed is refused.

The guard finds out who calls, whether the RPC is within its scopes and its limits, and has the RPC run as that caller.
Which models it may use is looked at where requests name them (`sight.py`). A call whose token is revoked ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
import grpc.aio
from structlog.typing import FilteringBoundLogger

from gateway.allowance import Allowance
from gateway.caller_errors import CredentialsExpired, CredentialsInvalid
from gateway.ending import UNOBSERVED, Ending, Observer
from gateway.errors import CallerError, GatewayError
from gateway.principal import NOBODY, Principal, acting_for
from gateway.request_errors import MalformedRequest, StreamIdle
from gateway.requests import Requests
from gateway.scopes import EXEMPT, scope_of
from gateway.services.registration import ServicersEdge
from gateway.status import CLIENT_GONE, ROWS, status_of
from gateway.token_file import TokenEntry
from gateway.tokens import Tokens

LOOK_INTERVAL_S = 1.0
MESSAGE_LIMIT_S = 30.0  # for the message of a call that needs but one
CERTIFICATE_NAMES = ("x509_common_name", "x509_subject_alternative_name")
Context = Any  # grpc.aio.ServicerContext
Handler = Any  # grpc.RpcMethodHandler
Behaviour = Callable[[Any, Context], Any]


@dataclass(eq=False, slots=True)
class _Visit:
    """One RPC of a caller, while it lasts."""

    entry: TokenEntry | None
    principal: Principal
    method: str
    stays_open: bool = False
    task: asyncio.Task[Any] | None = field(default_factory=asyncio.current_task)
    error: GatewayError | None = None

    def end(self, error: GatewayError) -> None:
        """End the RPC with `error`; a second time changes nothing."""
        if self.error is None and self.task is not None:
            self.error = error
            self.task.cancel()


class Guard(grpc.aio.ServerInterceptor):
    """Stands before every handler of a server.

    Args:
        tokens: that are good.
        requests: in flight, which are ended when their caller's token is revoked.
        relayed: full names of the RPCs that are passed on to workers.
        log: takes who was refused.
        allowance: counts what callers have had.
        observer: is told of the calls that are refused here.
    """

    def __init__(
        self,
        tokens: Tokens,
        requests: Requests,
        relayed: Collection[str],
        log: FilteringBoundLogger,
        allowance: Allowance | None = None,
        observer: Observer = UNOBSERVED,
    ) -> None:
        self._tokens = tokens
        self._requests = requests
        self._relayed = frozenset(relayed)
        self._log = log
        self._allowance = allowance or Allowance()
        self._observer = observer
        self._handlers: dict[str, tuple[Handler, Handler]] = {}
        self._visits: set[_Visit] = set()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Return the handler of a method behind this guard; None where there is no such method."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        known = self._handlers.get(method)
        if known is None or known[0] is not handler:
            known = self._handlers[method] = (handler, self._guarded(method, handler))
        return known[1]

    async def follow(self) -> None:
        """Read the tokens again when they change, and end the calls of those that are gone; runs until cancelled."""
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            await self.refresh()

    async def refresh(self) -> None:
        """Read the tokens again if they have changed, and end what is no longer allowed to run.

        A call that was passed on may finish after its token expired; one that only watches may not.
        """
        await self._tokens.refresh()
        for visit in tuple(self._visits):
            if visit.entry is None:
                continue
            if self._tokens.entry(visit.entry.id) is None:
                self._end(visit, CredentialsInvalid())
            elif visit.method not in self._relayed and self._tokens.is_expired(visit.entry):
                self._end(visit, CredentialsExpired())

    def _end(self, visit: _Visit, error: GatewayError) -> None:
        if visit.method not in self._relayed:
            visit.end(error)
            return
        for request in self._requests:
            if visit.task is not None and request.is_handled_by(visit.task):
                request.abort(error)

    def _guarded(self, method: str, handler: Handler) -> Handler:
        """Return a handler of the same method that lets the caller in first.

        For the library its request is a stream, so that nothing of it is read before its caller is known.
        """
        takes, gives = map(_word, (handler.request_streaming, handler.response_streaming))
        behaviour: Behaviour = getattr(handler, f"{takes}_{gives}")
        stays_open = handler.response_streaming or method in self._relayed

        async def answer(source: Any, context: Context) -> Any:
            async with ServicersEdge(context, self._log):
                visit = self._enter(method, context, stays_open=stays_open)
            try:
                async with ServicersEdge(context, self._log):
                    request = source if handler.request_streaming else await _only_message(context)
                with acting_for(visit.principal):
                    return await _run(behaviour, request, context)
            except asyncio.CancelledError:
                await _end_told(visit, context)
                raise
            finally:
                self._leave(visit)

        make: Any = getattr(grpc, f"stream_{gives}_rpc_method_handler")
        return make(answer, handler.request_deserializer, handler.response_serializer)

    def _enter(self, method: str, context: Context, *, stays_open: bool) -> _Visit:
        """Let a call in; `_leave` must follow.

        Raises:
            CallerError: the caller is not known, or may not do this, or not so often.
        """
        entry: TokenEntry | None = None
        try:
            entry = self._tokens.entry_for(context.invocation_metadata() or (), _certificate_names(context))
            visit = _Visit(entry, entry.principal(), method, stays_open=stays_open)
            if method != EXEMPT:
                self._allowance.take_call(visit.principal)
                visit.principal.check_scope(scope_of(method))
            if stays_open:
                self._allowance.open_stream(visit.principal)
        except CallerError as error:
            if method == EXEMPT:
                return _Visit(None, replace(NOBODY, refusal=error), method)
            self._refused(error, method, entry, context)
            raise
        self._visits.add(visit)
        return visit

    def _leave(self, visit: _Visit) -> None:
        if visit in self._visits:
            self._visits.discard(visit)
            if visit.stays_open:
                self._allowance.close_stream(visit.principal)

    def _refused(self, error: CallerError, method: str, entry: TokenEntry | None, context: Context) -> None:
        """Log a call that is refused, and tell the observer of it."""
        ending, status = Ending(method), status_of(error)
        ending.ended(status.code, status.trailers)
        ending.tell(self._observer, "", "", 0)
        self._log.info(
            "call refused",
            method=method,
            caller=entry.name if entry is not None else "",
            peer=context.peer(),
            reason=ROWS[type(error)].reason,
        )


async def _only_message(context: Context) -> Any:
    """Return the message of a method that takes one.

    Raises:
        MalformedRequest: the client sends none.
        StreamIdle: it sends none in time.
    """
    try:
        async with asyncio.timeout(MESSAGE_LIMIT_S):
            message = await context.read()
    except TimeoutError:
        raise StreamIdle(MESSAGE_LIMIT_S) from None
    if not isinstance(message, bytes):
        raise MalformedRequest("the stream ended before its first message")
    return message


async def _run(behaviour: Behaviour, request: Any, context: Context) -> Any:
    """Run a handler, whether it returns its answer, writes its answers, or yields them."""
    result = behaviour(request, context)
    if not hasattr(result, "__aiter__"):
        return await result
    async with aclosing(result) as responses:
        async for response in responses:
            await context.write(response)
    return None


async def _end_told(visit: _Visit, context: Context) -> None:
    """End the RPC with the status that says why the guard ended it; nothing where it was its client."""
    if visit.error is None:
        return
    if visit.task is not None:
        visit.task.uncancel()
    with contextlib.suppress(CLIENT_GONE):
        await context.abort(*status_of(visit.error))


def _word(streams: bool) -> str:
    return "stream" if streams else "unary"


def _certificate_names(context: Context) -> list[str]:
    """Return the names in the certificate that the client showed and the library verified."""
    facts: Mapping[str, Iterable[bytes]] = context.auth_context() or {}
    return [name.decode("utf-8", "replace") for key in CERTIFICATE_NAMES for name in facts.get(key, ())]
