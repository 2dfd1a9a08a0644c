"""The gateway's private line to one worker: handshake, heartbeats, shutdown, and the channel that requests go over."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from pomona.v1 import worker_pb2, worker_pb2_grpc

from gateway.model_status import Instance

SCHEMA_REVISION = 1
SECRET_KEY = "x-pomona-secret"  # noqa: S105 - the name of a key, not a secret
SOCKET_POLL_S = 0.005
ANNOUNCE_LIMIT_S = 1.0
CLOSED = (grpc.aio.BaseError, asyncio.InvalidStateError, RuntimeError)  # what a call over a closed channel raises
OPTIONS = (
    ("grpc.default_authority", "localhost"),  # A path is not a valid authority for every peer (grpc#34305).
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
)


class LinkError(Exception):
    """Raised when a worker's socket does not answer as the worker's protocol says."""


class WrongWorkerError(LinkError):
    """Raised when another instance, model or schema answers than the one that was started."""


class WorkerLink:
    """Calls to the worker that listens on `socket`.

    Args:
        socket: where the worker listens.
        secret: what proves to it that this gateway calls.
    """

    def __init__(self, socket: Path, secret: str) -> None:
        self._socket = socket
        self._metadata = ((SECRET_KEY, secret),)
        self.channel: grpc.aio.Channel = grpc.aio.insecure_channel(f"unix:{socket}", options=OPTIONS)
        self._stub = worker_pb2_grpc.WorkerServiceStub(self.channel)

    async def handshake(self, instance_id: str, model: str, timeout_s: float) -> None:
        """Wait for the socket and check who answers there.

        Raises:
            WrongWorkerError: not the worker that was started.
            LinkError: no answer, or not within `timeout_s`.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._socket_appears()
                answer = await self._shake_hands(instance_id, model)
        except TimeoutError as error:
            raise LinkError("no handshake") from error
        except grpc.aio.AioRpcError as error:
            raise LinkError(f"handshake {error.code().name}") from error
        found = (answer.instance_id, answer.model, answer.schema_revision)
        if found != (instance_id, model, SCHEMA_REVISION):
            raise WrongWorkerError(f"instance {found[0]!r}, model {found[1]!r}, schema {found[2]}")

    async def watch(self, interval_s: float) -> AsyncGenerator[worker_pb2.WatchWorkerResponse]:
        """Give the worker's reports as they come.

        Raises:
            LinkError: the stream broke off.
        """
        request = worker_pb2.WatchWorkerRequest(interval=_duration(interval_s))
        call = self._stub.WatchWorker(request, metadata=self._metadata)
        try:
            async for report in call:
                yield report
        except grpc.aio.AioRpcError as error:
            raise LinkError(f"heartbeat {error.code().name}") from error
        finally:
            call.cancel()

    async def shutdown(self, grace_s: float, timeout_s: float) -> bool:
        """Ask the worker to end.

        Args:
            grace_s: how long its requests may go on.
            timeout_s: how long its answer may take.

        Returns:
            Whether it agreed.
        """
        request = worker_pb2.ShutdownRequest(grace=_duration(grace_s))
        call = self._stub.Shutdown(request, metadata=self._metadata, timeout=timeout_s)
        try:
            await call
        except grpc.aio.AioRpcError:
            return False
        finally:
            call.cancel()
        return True

    async def close(self, grace_s: float) -> None:
        """Close the channel; what still runs over it after `grace_s` is cancelled."""
        await self.channel.close(grace_s)

    async def _shake_hands(self, instance_id: str, model: str) -> worker_pb2.HandshakeResponse:
        request = worker_pb2.HandshakeRequest(instance_id=instance_id, model=model, schema_revision=SCHEMA_REVISION)
        call = self._stub.Handshake(request, metadata=self._metadata, wait_for_ready=True)
        try:
            return await call
        finally:
            call.cancel()

    async def _socket_appears(self) -> None:
        # A channel that finds no socket pauses before it tries again: so it is not used before there is one.
        while not self._socket.exists():  # noqa: ASYNC110 - nothing here could set an event
            await asyncio.sleep(SOCKET_POLL_S)


async def ask(instance: Instance, method: str, request: Message, limit_s: float) -> Any:
    """Return what a worker answers to a method of WorkerService; None where it is gone, or too slow for the limit."""
    call: Any = None
    try:
        call = getattr(instance.stub, method)(request, metadata=((SECRET_KEY, instance.secret),), timeout=limit_s)
        return await call
    except (grpc.aio.AioRpcError, *CLOSED):
        return None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return None  # the call was cancelled, because its channel was closed
    finally:
        if call is not None:
            call.cancel()


async def announce_ending(instance: Instance, remaining_s: float) -> None:
    """Have a worker tell its requests when they will be ended; one that does not take it in time is left alone."""
    request = worker_pb2.AnnounceEndingRequest(remaining=_duration(remaining_s))
    await ask(instance, "AnnounceEnding", request, ANNOUNCE_LIMIT_S)


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration
