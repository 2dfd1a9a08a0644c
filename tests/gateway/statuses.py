"""Reading a status as a client sees it."""

from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

DETAILS: tuple[Any, ...] = (
    error_details_pb2.ErrorInfo,
    error_details_pb2.RetryInfo,
    error_details_pb2.BadRequest,
    error_details_pb2.ResourceInfo,
    error_details_pb2.PreconditionFailure,
    error_details_pb2.QuotaFailure,
)


@dataclass
class Seen:
    """A status and what came with it."""

    code: grpc.StatusCode
    message: str
    reason: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    details: dict[str, Message] = field(default_factory=dict)
    trailers: dict[str, Any] = field(default_factory=dict)


def seen(error: grpc.aio.AioRpcError) -> Seen:
    """Return what `error` says, details unpacked by the names of their types."""
    trailers: dict[str, Any] = dict(error.trailing_metadata() or ())
    status = status_pb2.Status.FromString(trailers.get("grpc-status-details-bin", b""))
    result = Seen(error.code(), error.details() or "", trailers=trailers)
    for packed in status.details:
        for kind in DETAILS:
            if packed.Is(kind.DESCRIPTOR):
                detail = kind()
                packed.Unpack(detail)
                result.details[kind.DESCRIPTOR.name] = detail
    info: Any = result.details.get("ErrorInfo")
    if info is not None:
        assert info.domain == "pomona"
        result.reason, result.metadata = info.reason, dict(info.metadata)
    return result


async def failure_of(call: Any) -> Seen:
    """Return how a call fails: an awaitable one, or one that streams its answer."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ended(call)
    return seen(caught.value)


async def ended(call: Any) -> None:
    """Take what a call gives until it ends."""
    if hasattr(call, "__aiter__"):
        async for _ in call:
            pass
    else:
        await call
