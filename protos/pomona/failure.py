"""A call that failed, with what a program needs to know of it."""

import asyncio
from collections.abc import Iterable
from typing import Any, cast

import grpc
from google.protobuf.message import DecodeError

from pomona.details import BAD_REQUEST, ERROR_INFO, RETRY_INFO, read_details
from pomona.v1 import common_pb2

_DETAILS_KEY = "grpc-status-details-bin"
_USAGE_KEY = "pomona-usage-bin"
_NANOS = 1_000_000_000


class PomonaError(Exception):
    """Raised when a call ended with a failure status.

    Attributes:
        code: the status. message: for people. reason: for programs: a name of `pomona.v1.ErrorReason` without its
        prefix; empty where the server did not decide it
            (the caller cancelled, the deadline passed, there is no connection).
        metadata: values that belong to the reason, such as `model`.
        retry_delay_s: after how many seconds trying again makes sense; None: the server did not say.
        violations: of an unusable request: the fields' paths, each with what is wrong with it.
        usage: what a request took that failed after it had begun.
    """

    def __init__(self, code: grpc.StatusCode, message: str, trailers: Iterable[tuple[str, str | bytes]] = ()) -> None:
        held = dict(trailers)
        details = read_details(_bytes(held.get(_DETAILS_KEY, b"")))
        info = details.get(ERROR_INFO)
        self.code = code
        self.message = message
        self.reason: str = info.reason if info else ""
        self.metadata: dict[str, str] = {pair.key: pair.value for pair in info.metadata} if info else {}
        self.retry_delay_s = _delay_s(details.get(RETRY_INFO))
        self.violations: dict[str, str] = _violations(details.get(BAD_REQUEST))
        self.usage = _usage(_bytes(held.get(_USAGE_KEY, b"")))
        super().__init__(f"{code.name} {self.reason}".rstrip() + f": {message}")


def failure_of(error: grpc.RpcError) -> PomonaError:
    """Turn what grpc raised for a call, of either kind, into a `PomonaError`."""
    if isinstance(error, grpc.aio.AioRpcError):
        trailers = cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())
        return PomonaError(error.code(), error.details() or "", trailers)
    call = cast("grpc.Call", error)
    code = call.code() or grpc.StatusCode.UNKNOWN
    return PomonaError(code, call.details() or "", call.trailing_metadata() or ())


def cancelled_by_hand() -> PomonaError | None:
    """Return what to tell of an `asyncio.CancelledError` where the call, and not the task, was cancelled."""
    task = asyncio.current_task()
    is_task = task is not None and task.cancelling() > 0
    return None if is_task else PomonaError(grpc.StatusCode.CANCELLED, "The caller cancelled the call.")


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("latin-1", "replace")


def _delay_s(retry: Any) -> float | None:
    return None if retry is None else retry.retry_delay.seconds + retry.retry_delay.nanos / _NANOS


def _violations(request: Any) -> dict[str, str]:
    return {} if request is None else {each.field: each.description for each in request.field_violations}


def _usage(data: bytes) -> common_pb2.Usage | None:
    try:
        return common_pb2.Usage.FromString(data) if data else None
    except DecodeError:
        return None
