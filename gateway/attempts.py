"""How a request is brought to a worker: the call, and a second one where the first worker was lost before it began."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

from gateway.body import Body
from gateway.ending import Ending
from gateway.errors import ModelBackingOff, ModelUnloading, WorkerRestarting
from gateway.lost_worker import exit_behind
from gateway.metadata import Metadata, public
from gateway.model_status import Exit, ExitCause, Instance, Lease, WorkerPool
from gateway.principal import caller
from gateway.quarantine import Quarantine, QuarantineLimits, Run, Stage, fingerprint_of
from gateway.requests import Request
from gateway.stream_call import StreamCall

MAX_RETRIED_BYTES = 1024 * 1024  # a larger request may be what took its worker with it

Call = Any  # a call of grpc.aio that streams its answer, or a StreamCall
Context = Any  # grpc.aio.ServicerContext


@dataclass(frozen=True, slots=True)
class Asked:
    """What a worker is asked.

    Attributes:
        method: full name of the RPC.
        request_streams: whether the client's messages are many.
        body: the first of them, and what is added to it.
        source: the rest of them.
        metadata: but for the worker's secret.
    """

    method: str
    request_streams: bool
    body: tuple[bytes, bytes]
    source: Any
    metadata: Metadata

    @property
    def can_repeat(self) -> bool:
        """Whether it can be asked again."""
        return not self.request_streams and len(self.body[0]) <= MAX_RETRIED_BYTES


class WorkerLost(Exception):
    """Raised when a worker went away before it began the request."""


@dataclass(slots=True)
class Retries:
    """What is done about workers that go away.

    Attributes:
        quarantine: remembers the requests that they went away with.
        is_on: whether a request is brought to the next worker where the first had not begun it.
    """

    quarantine: Quarantine = field(default_factory=lambda: Quarantine(QuarantineLimits()))
    is_on: bool = True


class Attempts:
    """The calls of one request, one at a time; the last of them stays until `drop`.

    Args:
        context: of the client's RPC.
        workers: to call.
        ending: is told of every call.
        remaining_s: tells the time that is left, in seconds; raises DeadlineExceeded where there is none.
        retries: what is done about workers that go away.

    Attributes:
        rest: the messages of the answer after the first.
    """

    def __init__(
        self,
        context: Context,
        workers: WorkerPool,
        ending: Ending,
        remaining_s: Callable[[], float],
        retries: Retries,
    ) -> None:
        self.rest: AsyncIterator[bytes] = _nothing()
        self._context = context
        self._workers = workers
        self._ending = ending
        self._remaining_s = remaining_s
        self._retries = retries
        self._fingerprint: bytes | None = None
        self._run: Run | None = None
        self._has_begun = False
        self._lease: Lease | None = None
        self._call: Call | None = None

    async def first_message(self, request: Request, asked: Asked) -> bytes | None:
        """Return the first message of the answer, None where it has none.

        Raises:
            GatewayError: no worker could be had, or both went away before they began.
            AioRpcError: the status that the worker gave.
        """
        if not asked.request_streams:  # of a stream, what follows is not known yet
            self._fingerprint = await fingerprint_of(asked.method, request.model, asked.body[0], caller().group)
        try:
            return await self._attempt(request, asked)
        except WorkerLost:
            self.drop(request)
        if not asked.can_repeat or not self._retries.is_on:
            raise WorkerRestarting(request.model)
        try:
            return await self._attempt(request, asked)
        except WorkerLost:
            raise WorkerRestarting(request.model) from None
        except ModelBackingOff as error:
            raise WorkerRestarting(request.model, error.retry_after_s) from None

    async def trailers(self) -> Metadata:
        """Return the worker's trailers once its answer is complete."""
        if self._run is not None:
            self._run.completed()
        return tuple(await self._call.trailing_metadata()) if self._call is not None else ()

    async def exit_behind(self, error: grpc.aio.AioRpcError) -> Exit | None:
        """Return how the worker ended where that is what broke the call."""
        ended = await exit_behind(error, self._lease.instance) if self._lease is not None else None
        return self._noted(ended)

    def known_exit(self) -> Exit | None:
        """Return how the worker ended, None where it has not or where there is none."""
        exit_ = self._lease.instance.exit if self._lease is not None else None
        return self._noted(exit_.result() if exit_ is not None and exit_.done() else None)

    def drop(self, request: Request) -> None:
        """Let go of the worker."""
        request.waits()
        call, self._call = self._call, None
        lease, self._lease = self._lease, None
        run, self._run = self._run, None
        if run is not None:
            run.leave()
        if call is not None:
            call.cancel()
        if lease is not None:
            lease.instance.exit.remove_done_callback(self._worker_gone)
            lease.release()

    async def _attempt(self, request: Request, asked: Asked) -> bytes | None:
        """Call a worker and return the first message of its answer."""
        if request.error is not None:
            raise request.error
        if self._fingerprint is not None:
            self._retries.quarantine.check(self._fingerprint)
        self._lease = await self._workers.acquire(request.model, self._remaining_s())
        instance = self._lease.instance
        call = self._start(instance, asked)
        request.called(instance, call.cancel)
        if self._fingerprint is not None:
            self._run = self._retries.quarantine.run(instance.instance_id, self._fingerprint)
        self._ending.called()
        try:
            await self._forward_initial(request, await call.initial_metadata())
            first = await anext(self.rest, None)
        except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
            if self._has_begun or not await self._was_lost(request, instance, error):
                raise
            raise WorkerLost from None
        self._has_begun = True
        self._is_at(Stage.ANSWERED)
        return first

    def _start(self, instance: Instance, asked: Asked) -> Call:
        channel: Any = instance.channel
        metadata = (*asked.metadata, ("x-pomona-secret", instance.secret))
        if asked.request_streams:
            stream = channel.stream_stream(asked.method)(timeout=self._remaining_s(), metadata=metadata)
            call = StreamCall(stream, b"".join(asked.body), asked.source)
        else:
            method = channel.unary_stream(asked.method, request_serializer=Body.take)
            call = method(Body(*asked.body), timeout=self._remaining_s(), metadata=metadata)
        self._call = call
        self.rest = aiter(call)
        call.add_done_callback(self._call_done)
        instance.exit.add_done_callback(self._worker_gone)
        return call

    def _call_done(self, _call: Call) -> None:
        """Hold the worker no longer than the call lasts, however slow the client reads."""
        if self._lease is not None:
            self._lease.release()

    def _worker_gone(self, _exit: asyncio.Future[Exit]) -> None:
        if self._call is not None:
            self._call.cancel()

    async def _forward_initial(self, request: Request, initial: Any) -> None:
        # A worker that begins says so with a key; a call that broke gives empty metadata.
        self._has_begun = bool(initial)
        if initial:
            self._is_at(Stage.BEGUN)
        shown = public(initial)
        if shown:
            request.is_writing = True
            await self._context.send_initial_metadata(shown)
            request.is_writing = False

    def _is_at(self, stage: Stage) -> None:
        if self._run is not None:
            self._run.stage = stage

    def _noted(self, ended: Exit | None) -> Exit | None:
        """Return how the worker ended; where that is the fault of what ran on it, have it noted."""
        if ended is not None and ended.cause is not ExitCause.UNLOADED and self._run is not None:
            self._run.died()
        return ended

    async def _was_lost(self, request: Request, instance: Instance, error: BaseException) -> bool:
        """Say whether the worker went away under the call; one that was unloaded says so."""
        if isinstance(error, grpc.aio.AioRpcError):
            ended = self._noted(await exit_behind(error, instance))
        elif request.error is None and not is_cancelled() and instance.exit.done():
            ended = self._noted(instance.exit.result())
        else:
            ended = None
        if ended is not None and ended.cause is ExitCause.UNLOADED:
            raise ModelUnloading(request.model)
        return ended is not None


def is_cancelled() -> bool:
    """Say whether someone cancelled this task; a call that was cancelled raises the same error."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _nothing() -> AsyncIterator[bytes]:
    for message in ():
        yield message
