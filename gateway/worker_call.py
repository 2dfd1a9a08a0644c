"""One call of a public method on a worker's socket, made by a service of the gateway's own."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from gateway.lost_worker import BUG_CODES, death_of, exit_behind, has_details
from gateway.metadata import public
from gateway.model_status import Lease
from gateway.status import Status
from gateway.worker_link import SECRET_KEY

MessageType = TypeVar("MessageType", bound=Message)


class WorkerRefusal(Exception):
    """Raised when a worker ends a call with a status of its own, which is the client's to have."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.message)
        self.status = status


async def call_worker(
    lease: Lease, method: str, request: Message, answer: type[MessageType], limit_s: float
) -> MessageType:
    """Return what a worker answers.

    Args:
        lease: of the worker.
        method: full name.
        request: with the model's canonical name.
        answer: the kind of its answer.
        limit_s: how long it may take.

    Raises:
        GatewayError: the worker went away.
        WorkerRefusal: it refused.
    """
    instance = lease.instance
    channel: Any = instance.channel
    call = channel.unary_unary(method)(
        request.SerializeToString(), timeout=limit_s, metadata=((SECRET_KEY, instance.secret),)
    )

    def gone(_exit: object) -> None:
        call.cancel()

    instance.exit.add_done_callback(gone)
    try:
        return answer.FromString(await call)
    except grpc.aio.AioRpcError as error:
        ended = await exit_behind(error, instance)
        if ended is not None:
            raise death_of(ended, lease.model, 0) from None
        if error.code() in BUG_CODES and not has_details(error):
            raise
        raise WorkerRefusal(_status(error)) from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if (task is not None and task.cancelling()) or not instance.exit.done():
            raise
        raise death_of(instance.exit.result(), lease.model, 0) from None
    finally:
        instance.exit.remove_done_callback(gone)
        call.cancel()


def _status(error: grpc.aio.AioRpcError) -> Status:
    return Status(error.code(), error.details() or "", public(error.trailing_metadata() or ()))
