"""How an RPC ended, for its one line in the log: status, reason, field at fault, times and tokens.

What is known comes from the status and its trailers: the bodies of messages are not looked into.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from pomona.v1 import common_pb2
from structlog.typing import FilteringBoundLogger

from gateway.envelope import Envelope
from gateway.status import DETAILS_KEY

USAGE_KEY = "pomona-usage-bin"


class Ending:
    """Follows one RPC and writes the line about its end.

    Attributes:
        started_s: when it came, in seconds of the clock.
    """

    def __init__(self, method: str, now: Callable[[], float] = time.monotonic) -> None:
        """Begin with an RPC of `method`, a full name, which ends as cancelled where nothing else is noted."""
        self.started_s = now()
        self._now = now
        self._method = method
        self._envelope: Envelope | None = None
        self._called_s: float | None = None
        self._answered_s: float | None = None
        self._status = "CANCELLED"
        self._facts: dict[str, Any] = {}

    @property
    def status(self) -> str:
        """Name of the status that the client gets; CANCELLED until another one is noted."""
        return self._status

    def addressed(self, envelope: Envelope) -> None:
        """Note whom the request is for, as its client wrote it."""
        self._envelope = envelope

    def called(self) -> None:
        """Note that a worker was called, or another one."""
        self._called_s = self._now()

    def answered(self) -> None:
        """Note that the first message of the answer came."""
        self._answered_s = self._now()

    def ended(self, code: grpc.StatusCode, trailers: Iterable[tuple[str, str | bytes]] = ()) -> None:
        """Note the status that the client gets, and what its trailers say."""
        self._status = code.name
        told = dict(trailers)
        try:
            self._facts |= _usage_facts(told.get(USAGE_KEY))
            self._facts |= _failure_facts(told.get(DETAILS_KEY))
        except DecodeError:
            self._facts["details"] = "not readable"

    def write(self, log: FilteringBoundLogger, model: str, request_id: str, events_sent: int) -> None:
        """Write the line; what is not known is not in it.

        Args:
            log: takes it.
            model: canonical name; empty where the request did not come so far.
            request_id: likewise.
            events_sent: messages that the client has taken.
        """
        told = self._envelope
        log.info(
            "request ended",
            method=self._method,
            model=model or (told.model if told is not None else ""),
            request_id=request_id or (told.request_id if told is not None else ""),
            status=self._status,
            events_sent=events_sent,
            **self._times(),
            **self._facts,
        )

    def _times(self) -> dict[str, float]:
        """Return milliseconds: of the whole, until a worker was called, from there to its first message, after it."""
        end_s = self._now()
        times = {"duration_ms": _ms(self.started_s, end_s)}
        if self._called_s is not None:
            times["queue_ms"] = _ms(self.started_s, self._called_s)
        if self._called_s is not None and self._answered_s is not None:
            times["first_message_ms"] = _ms(self._called_s, self._answered_s)
            times["rest_ms"] = _ms(self._answered_s, end_s)
        return times


def _ms(begin_s: float, end_s: float) -> float:
    return round((end_s - begin_s) * 1000, 1)


def _usage_facts(packed: str | bytes | None) -> dict[str, Any]:
    if not isinstance(packed, bytes):
        return {}
    usage = common_pb2.Usage.FromString(packed)
    return {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}


def _failure_facts(packed: str | bytes | None) -> dict[str, Any]:
    """Return the reason, and the first field at fault, of a status with details."""
    facts: dict[str, Any] = {}
    if not isinstance(packed, bytes):
        return facts
    info, request = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    for detail in status_pb2.Status.FromString(packed).details:
        if detail.Unpack(info):
            facts["reason"] = info.reason
        elif detail.Unpack(request) and request.field_violations:
            facts["field"] = request.field_violations[0].field
    return facts
