"""Failures of a verb, each told in one line.

CliError
├── UsageError        wrong arguments; exit code 2
├── SetupError        something that this machine lacks
├── NotInFlightError  no request has this id
├── Interrupted       Ctrl-C; exit code 130
└── ServerError       a gRPC status
    └── ServerNotReachedError
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from gateway.cli.flags import flag_of, told_by_flag
from gateway.cli.sizes import size_option
from gateway.cli.suggestions import closest_first, suggestion

# How gRPC's own texts begin where there is no connection, and what they say where nothing listens.
NOT_CONNECTED = ("failed to connect", "errors resolving")
# How gRPC's own texts begin where a call broke off.
BROKEN_OFF = ("Stream removed", "Socket closed", "recvmsg:", "GOAWAY")
# What they hold where the caller's own deadline passed.
TIMED_OUT = "Deadline Exceeded"
# What they say of a method that a server has not.
UNKNOWN_METHOD = "Method not found!"
NOBODY_THERE = ("Connection refused", "No such file or directory")


class CliError(Exception):
    """Raised when a verb cannot do what was asked; its text is the line that the person reads.

    `code` and `reason` tell programs the same, as a status of the server would.
    """

    exit_code = 1
    code = "UNKNOWN"
    reason = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the failure for `--json`."""
        return _as_dict(StatusFacts(self.code, str(self), self.reason))


class UsageError(CliError):
    """Raised when the arguments cannot be used."""

    exit_code = 2
    code = "INVALID_ARGUMENT"
    reason = "USAGE"


class SetupError(CliError):
    """Raised when this machine lacks something that the verb needs."""

    code = "FAILED_PRECONDITION"
    reason = "SETUP"


class NotInFlightError(CliError):
    """Raised when no request in flight has the id that was given; `known` are the ids there are."""

    code = "NOT_FOUND"
    reason = "REQUEST_NOT_FOUND"
    most_listed = 10

    def __init__(self, request_id: str, known: Sequence[str]) -> None:
        listed = closest_first(request_id, known)[: self.most_listed]
        more = f" and {len(known) - len(listed)} more" if len(known) > len(listed) else ""
        others = f"; in flight: {', '.join(listed)}{more}" if listed else ", and no other"
        super().__init__(f"no request {request_id} is in flight{others}{suggestion(request_id, known)}")


class Interrupted(CliError):
    """Raised when Ctrl-C ended the verb."""

    exit_code = 130
    code = "CANCELLED"
    reason = "INTERRUPTED"


class ServerError(CliError):
    """Raised when the server answered with a failure status."""

    def __init__(self, facts: "StatusFacts") -> None:
        super().__init__(facts.line())
        self.facts = facts

    def as_dict(self) -> dict[str, Any]:
        """Return the status with its details."""
        return _as_dict(self.facts)


class ServerNotReachedError(ServerError):
    """Raised when no connection to the address comes about."""

    def __init__(self, facts: "StatusFacts", address: str) -> None:
        super().__init__(facts)
        if any(words in facts.message for words in NOBODY_THERE):
            text = f"no server answers at {address}; start one with: pomona serve --listen {address} --model NAME=PATH"
        else:
            text = (
                f"no connection to {address}: {facts.message}. A server with TLS needs --tls-ca FILE (and"
                " --tls-client-cert and --tls-client-key where it asks for certificates), one without takes none"
            )
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
        """Tell it in one line: code, reason, message, fields by their options, incident, when to try again."""
        message = self._message()
        for path in dict.fromkeys([self.metadata.get("field", ""), *(name for name, _ in self.violations)]):
            message = told_by_flag(message, path)
        parts = [f"{self.code} {self.reason}".rstrip() + ":", " ".join(message.split()) or "(no message)"]
        parts += [f"[{flag_of(name)}: {text}]" for name, text in self.violations if text not in self.message]
        if "incident" in self.metadata:
            parts.append(f"(incident {self.metadata['incident']})")
        if self.retry_delay_s is not None:
            parts.append(f"(try again in {self.retry_delay_s:g} s)")
        if self.reason == "CREDENTIALS_MISSING":
            parts.append("A token is sent by --token-file FILE, or in POMONA_TOKEN.")
        if self.reason == "MODEL_FAILED" and "model" in self.metadata:
            parts.append(f"To try again: pomona load {self.metadata['model']}")
        if self.reason == "MODEL_NOT_FOUND" and "models" in self.metadata:
            parts.append(self._models())
        return " ".join(parts)

    def _message(self) -> str:
        """Return the message; of a budget that is too small, in the words of the option that sets it."""
        least = self.metadata.get("least_bytes", "")
        if self.metadata.get("option") != "expert_budget" or not least.isdecimal():
            return self.message
        return f"the budget for experts is too small; the least is --expert-budget {size_option(int(least))}"

    def _models(self) -> str:
        """Say which models there are, the likeliest first."""
        asked, names = (
            self.metadata.get("model", ""),
            [each for each in self.metadata.get("models", "").split(", ") if each],
        )
        if not names:
            return "The server has none; it is told of them by: pomona serve --model NAME=PATH"
        return f"There are: {', '.join(closest_first(asked, names))}{suggestion(asked, names)}"


def failure_of(error: grpc.RpcError, address: str) -> ServerError:
    """Turn what grpc raised for a call to `address` into a failure to show."""
    call = cast("grpc.Call", error)
    facts = _facts(call)
    if facts.code == "UNAVAILABLE" and not facts.reason and facts.message.startswith(NOT_CONNECTED):
        cause = facts.message.rpartition("last error: ")[2]
        return ServerNotReachedError(StatusFacts(facts.code, cause, "NOT_CONNECTED"), address)
    return ServerError(facts if facts.reason else _explained(facts))


def _explained(facts: "StatusFacts") -> "StatusFacts":
    """Say what a status of gRPC itself means, with a reason for programs."""
    if facts.code == "UNAVAILABLE":
        said = "" if facts.message.startswith(BROKEN_OFF) else f" ({facts.message})"
        words = f"the connection to the server broke off{said}"
        return replace(facts, reason="CONNECTION_LOST", message=words)
    if facts.code == "DEADLINE_EXCEEDED" and TIMED_OUT in facts.message:
        words = "the answer did not come in time; --timeout SECONDS gives it more"
        return replace(facts, reason="TIMEOUT", message=words)
    if facts.code == "UNIMPLEMENTED" and facts.message == UNKNOWN_METHOD:
        words = "the server does not offer this call at this address; an admin socket takes no requests to models"
        return replace(facts, message=words)
    return facts


def _as_dict(facts: StatusFacts) -> dict[str, Any]:
    return {
        "code": facts.code,
        "reason": facts.reason,
        "message": facts.message,
        "metadata": facts.metadata,
        "fieldViolations": [{"field": name, "description": text} for name, text in facts.violations],
        "retryDelaySeconds": facts.retry_delay_s,
    }


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
