"""Failures of a verb, each told in one line.

CliError
├── UsageError        wrong arguments; exit code 2
├── SetupError        something that this machine lacks
└── ServerError       a gRPC status
    └── ServerNotReachedError
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

# How gRPC's own texts begin where there is no connection, and what they say where nothing listens.
NOT_CONNECTED = ("failed to connect", "errors resolving")
# How gRPC says that a call broke off, and what that means to a person.
BROKEN = ("Stream removed", "Deadline Exceeded")
BROKEN_WORDS = {
    "UNAVAILABLE": "the connection to the server broke off",
    "DEADLINE_EXCEEDED": "the answer took longer than the time that --timeout gives",
}
NOBODY_THERE = ("Connection refused", "No such file or directory")


class CliError(Exception):
    """Raised when a verb cannot do what was asked; its text is the line that the person reads."""

    exit_code = 1

    def as_dict(self) -> dict[str, Any]:
        """Return the failure for `--json`."""
        return {"message": str(self)}


class UsageError(CliError):
    """Raised when the arguments cannot be used."""

    exit_code = 2


class SetupError(CliError):
    """Raised when this machine lacks something that the verb needs."""


class ServerError(CliError):
    """Raised when the server answered with a failure status."""

    def __init__(self, facts: "StatusFacts") -> None:
        super().__init__(facts.line())
        self.facts = facts

    def as_dict(self) -> dict[str, Any]:
        """Return the status with its details."""
        facts = self.facts
        return {
            "code": facts.code,
            "reason": facts.reason,
            "message": facts.message,
            "metadata": facts.metadata,
            "fieldViolations": [{"field": name, "description": text} for name, text in facts.violations],
            "retryDelaySeconds": facts.retry_delay_s,
        }


class ServerNotReachedError(ServerError):
    """Raised when no connection to the address comes about."""

    def __init__(self, facts: "StatusFacts", address: str) -> None:
        super().__init__(facts)
        if any(words in facts.message for words in NOBODY_THERE):
            text = f"no server answers at {address}; start one with: pomona serve --listen {address} --model NAME=PATH"
        else:
            text = f"no connection to {address}: {facts.message}; --tls-ca is for servers with TLS, and needed there"
        self.args = (text,)


@dataclass(frozen=True, slots=True)
class StatusFacts:
    """What a gRPC status says, with the details that this project sends."""

    code: str
    message: str
    reason: str = ""
    metadata: dict[str, str] = field(default_factory=dict[str, str])
    violations: tuple[tuple[str, str], ...] = ()
    retry_delay_s: float | None = None

    def line(self) -> str:
        """Tell it in one line: code, reason, message, fields, incident, when to try again."""
        parts = [f"{self.code} {self.reason}".rstrip() + ":", " ".join(self.message.split()) or "(no message)"]
        parts += [f"[{name}: {text}]" for name, text in self.violations if text not in self.message]
        if "incident" in self.metadata:
            parts.append(f"(incident {self.metadata['incident']})")
        if self.retry_delay_s is not None:
            parts.append(f"(try again in {self.retry_delay_s:g} s)")
        return " ".join(parts)


def failure_of(error: grpc.RpcError, address: str) -> ServerError:
    """Turn what grpc raised for a call to `address` into a failure to show."""
    call = cast("grpc.Call", error)
    facts = _facts(call)
    if facts.code == "UNAVAILABLE" and not facts.reason and facts.message.startswith(NOT_CONNECTED):
        cause = facts.message.rpartition("last error: ")[2]
        return ServerNotReachedError(StatusFacts(facts.code, cause), address)
    if not facts.reason and facts.message.startswith(BROKEN):
        words = BROKEN_WORDS.get(facts.code, facts.message)
        return ServerError(replace(facts, message=words))
    return ServerError(facts)


def _facts(call: grpc.Call) -> StatusFacts:
    code, message = call.code().name, call.details() or ""
    try:
        status = cast("status_pb2.Status | None", rpc_status.from_call(call))  # pyright: ignore[reportUnknownMemberType]
    except ValueError:  # the details contradict the status: only the status itself can be believed
        status = None
    details: Iterable[AnyMessage] = status.details if status else ()
    reason, metadata, violations, delay = "", dict[str, str](), list[tuple[str, str]](), None
    info, request, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
    for detail in details:
        if detail.Unpack(info):
            reason, metadata = info.reason, dict(info.metadata)
        elif detail.Unpack(request):
            violations += [(each.field, each.description) for each in request.field_violations]
        elif detail.Unpack(retry):
            delay = retry.retry_delay.ToTimedelta().total_seconds()
    return StatusFacts(code, message, reason, metadata, tuple(violations), delay)
