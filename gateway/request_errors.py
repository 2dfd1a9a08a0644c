"""What the gateway refuses because of the request itself; `errors.py` has the whole tree."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.errors import RequestError


@dataclass(frozen=True, slots=True)
class Violation:
    """One field at fault: its path in the request, and what is wrong with it."""

    field: str
    description: str


@dataclass(eq=False)
class MalformedRequest(RequestError):
    """Raised when a body is not protobuf, or its envelope is not one that can be routed."""

    problem: str

    text = "The request is malformed: {0.problem}."


@dataclass(eq=False)
class InvalidField(RequestError):
    """Raised when a field is out of its range; there is at least one violation."""

    violations: tuple[Violation, ...]

    text = "A field is invalid: {0.violations[0].field} {0.violations[0].description}."


@dataclass(eq=False)
class UnsupportedOption(RequestError):
    """Raised when a field asks for something that this build does not do; there is at least one violation."""

    violations: tuple[Violation, ...]

    text = "An option is not supported: {0.violations[0].field} {0.violations[0].description}."


@dataclass(eq=False)
class DuplicateRequestId(RequestError):
    """Raised when a request of the same caller with this id is still in flight."""

    request_id: str

    text = "A request with the id {0.request_id} is still in flight."


@dataclass(eq=False)
class StreamIdle(RequestError):
    """Raised when a client opened a stream and sent nothing for `idle_s` seconds."""

    idle_s: float

    text = "No message came for {0.idle_s:g} seconds."


@dataclass(eq=False)
class SlowReader(RequestError):
    """Raised when a client took nothing of its answer for `waited_s` seconds."""

    waited_s: float

    text = "The client took nothing of its answer for {0.waited_s:.1f} seconds."


@dataclass(eq=False)
class RequestQuarantined(RequestError):
    """Raised when `deaths` workers died with a request like this one of late."""

    deaths: int

    text = "This request took its worker with it {0.deaths} times, and is not tried again for a while."
