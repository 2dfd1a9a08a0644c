"""How the end of a worker shows in a call to it, and what clients are told of it."""

from __future__ import annotations

import asyncio
import signal

import grpc
import grpc.aio

from gateway.errors import GatewayError, ModelUnloading, WorkerDied, WorkerStalled
from gateway.model_status import Exit, ExitCause, Instance
from gateway.status import DETAILS_KEY

EXIT_KNOWN_S = 0.05  # how long after a broken connection the news of the worker's end may take
BUG_CODES = frozenset({grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL})
LOST_CODES = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED})


async def exit_behind(error: grpc.aio.AioRpcError, instance: Instance) -> Exit | None:
    """Return how the worker ended where that is what broke the call; None where the worker itself gave the status."""
    if error.code() not in LOST_CODES or has_details(error):
        return None
    await asyncio.wait([instance.exit], timeout=EXIT_KNOWN_S)
    return instance.exit.result() if instance.exit.done() else Exit(ExitCause.DIED)


def has_details(error: grpc.aio.AioRpcError) -> bool:
    """Say whether Pomona itself gave the status."""
    return any(key == DETAILS_KEY for key, _ in error.trailing_metadata() or ())


def death_of(ended: Exit, model: str, events_sent: int) -> GatewayError:
    """Return what a client is told whose request had begun, and got `events_sent` messages, when its worker ended."""
    if ended.cause is ExitCause.UNLOADED:
        return ModelUnloading(model)
    if ended.cause is ExitCause.STALLED:
        return WorkerStalled(model, events_sent)
    name = signal.Signals(ended.signal).name if ended.signal is not None else ""
    return WorkerDied(model, events_sent, name, ended.code)
