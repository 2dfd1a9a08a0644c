"""How an RPC ended: status, reason, field at fault, times and tokens, for its line in the log and for whoever observes.

What is known comes from the status and its trailers: the bodies of messages are not looked into.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from pomona.v1 import common_pb2
from structlog.typing import FilteringBoundLogger

from gateway.envelope import Envelope
from gateway.status import DETAILS_KEY
from gateway.trace import Trace

USAGE_KEY = "pomona-usage-bin"  # of a failure; clients get it
OWN_USAGE_KEY = "x-pomona-usage-bin"  # of an answer, whose last message tells the client


@dataclass(frozen=True, slots=True)
class Times:
    """When an RPC came to its stations, in seconds of the monotonic clock; None where it did not get there.

    Attributes:
        started_s: it came.
        admitted_s: it was let in.
        called_s: a worker was there for it and was called.
        answered_s: the first message of the answer came.
        ended_s: it had its status.
    """

    started_s: float
    admitted_s: float | None
    called_s: float | None
    answered_s: float | None
    ended_s: float


@dataclass(frozen=True, slots=True)
class Ended:
    """An RPC that has its status.

    Attributes:
        method: full name.
        model: canonical name; empty where the request did not come so far, or is for none.
        request_id: likewise.
        status: name of the gRPC status.
        reason: of the ErrorInfo; empty where there is none.
        times: of its stations.
        events_sent: messages that the client has taken.
        usage: tokens, as far as the worker told.
        trace: which it belongs to; None where neither the client nor the settings want one.
    """

    method: str
    model: str
    request_id: str
    status: str
    reason: str
    times: Times
    events_sent: int = 0
    usage: common_pb2.Usage = field(default_factory=common_pb2.Usage)
    trace: Trace | None = None


class Observer(Protocol):
    """Whoever wants to know of RPCs; must neither wait nor raise."""

    def ended(self, end: Ended) -> None:
        """Take note of an RPC that has its status."""
        ...

    def pace(self, model: str) -> Callable[[], None]:
        """Return what is to be called for each message that a client of `model` has taken, the first one too."""
        ...


class Unobserved:
    """Observes nothing."""

    def ended(self, end: Ended) -> None:
        """Forget it."""

    def pace(self, model: str) -> Callable[[], None]:  # noqa: ARG002 - nobody counts
        """Return what does nothing."""
        return _nothing


def _nothing() -> None:
    """Do nothing."""


UNOBSERVED: Observer = Unobserved()
_KEY = re.compile(r'\["(?:[^"\\]|\\.)*("\]|$)')


class Ending:
    """Follows one RPC, writes the line about its end and tells an observer of it.

    Attributes:
        started_s: when it came, in seconds of the clock.
        trace: which it belongs to.
    """

    def __init__(self, method: str, now: Callable[[], float] = time.monotonic, trace: Trace | None = None) -> None:
        """Begin with an RPC of `method`, a full name, which ends as cancelled where nothing else is noted."""
        self.started_s = now()
        self.trace = trace
        self._now = now
        self._method = method
        self._envelope: Envelope | None = None
        self._admitted_s: float | None = None
        self._called_s: float | None = None
        self._answered_s: float | None = None
        self._status = "CANCELLED"
        self._usage = common_pb2.Usage()
        self._facts: dict[str, Any] = {}

    @property
    def status(self) -> str:
        """Name of the status that the client gets; CANCELLED until another one is noted."""
        return self._status

    def addressed(self, envelope: Envelope) -> None:
        """Note whom the request is for, as its client wrote it."""
        self._envelope = envelope

    def admitted(self) -> None:
        """Note that the request was let in."""
        self._admitted_s = self._now()

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
            packed = told.get(USAGE_KEY, told.get(OWN_USAGE_KEY))
            if isinstance(packed, bytes):
                self._usage = common_pb2.Usage.FromString(packed)
                self._facts |= _usage_facts(self._usage)
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
        traced = {"trace_id": self.trace.trace_id} if self.trace is not None else {}
        log.info(
            "request ended",
            method=self._method,
            model=model or (told.model if told is not None else ""),
            request_id=request_id or (told.request_id if told is not None else ""),
            status=self._status,
            events_sent=events_sent,
            **self._times(),
            **self._facts,
            **traced,
        )

    def tell(self, observer: Observer, model: str, request_id: str, events_sent: int) -> None:
        """Tell an observer of the end.

        Args:
            observer: is told once.
            model: canonical name; empty where the request did not come so far.
            request_id: likewise.
            events_sent: messages that the client has taken.
        """
        times = Times(self.started_s, self._admitted_s, self._called_s, self._answered_s, self._now())
        reason = str(self._facts.get("reason", ""))
        observer.ended(
            Ended(self._method, model, request_id, self._status, reason, times, events_sent, self._usage, self.trace)
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


def _without_keys(path: str) -> str:
    """Return the path of a field without the keys of maps in it, which are the client's words."""
    return _KEY.sub("[]", path)


def _usage_facts(usage: common_pb2.Usage) -> dict[str, Any]:
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
            facts |= {"incident": info.metadata["incident"]} if "incident" in info.metadata else {}
        elif detail.Unpack(request) and request.field_violations:
            facts["field"] = _without_keys(request.field_violations[0].field)
    return facts
