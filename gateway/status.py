"""Turns the errors of the gateway into gRPC statuses, in one table, and into `Failure` values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import grpc.aio
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc import StatusCode
from pomona.v1 import common_pb2

from gateway import caller_errors, errors, pull_errors, request_errors

DOMAIN = "pomona"
DETAILS_KEY = "grpc-status-details-bin"
PUSHBACK_KEY = "grpc-retry-pushback-ms"
CLIENT_GONE = grpc.aio.InternalError  # what the library raises where something is sent in an RPC that is over
RETRIED_CODES = frozenset({StatusCode.UNAVAILABLE, StatusCode.RESOURCE_EXHAUSTED})  # that a library may send again
MAX_TEXT_CHARS = 512  # of a message, and of a value in the metadata: a whole status stays under 4 KiB
MAX_FACTS = 4
MAX_VIOLATIONS = 4


class Status(NamedTuple):
    """A gRPC status as an aborting handler sends it."""

    code: StatusCode
    message: str
    trailers: tuple[tuple[str, str | bytes], ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the error table.

    Attributes:
        code: the gRPC status code.
        reason: ErrorInfo.reason; empty for a status without details.
        metadata: makes ErrorInfo.metadata of the error.
        detail: makes the detail that fits the reason, of the error, the reason and the text.
        retry_s: after how many seconds to try again, where the error has no `retry_after_s`; None: do not say.
        pushback: whether a client library may retry by itself; False tells it not to. It never may but for UNAVAILABLE:
            some (grpc-java's) obey a push-back whatever their policy says of the status, and would fill a full queue.
    """

    code: StatusCode
    reason: str
    metadata: Callable[[Any], Mapping[str, object]] | None = None
    detail: Callable[[Any, str, str], Message] | None = None
    retry_s: float | None = None
    pushback: bool = True


def status_of(error: errors.GatewayError) -> Status:
    """Return the status, with its rich details and retry advice, that tells a client of `error`."""
    row = ROWS[type(error)]
    message = _text(error)
    if not row.reason:
        return Status(row.code, message, ())
    details: list[Message] = [
        error_details_pb2.ErrorInfo(reason=row.reason, domain=DOMAIN, metadata=_metadata(error, row))
    ]
    if row.detail is not None:
        details.append(row.detail(error, row.reason, message))
    trailers: list[tuple[str, str | bytes]] = []
    retry_s = _retry_s(error, row)
    if retry_s is not None:
        details.append(error_details_pb2.RetryInfo(retry_delay=_duration(retry_s)))
        may_retry = row.pushback and row.code is StatusCode.UNAVAILABLE
        trailers.append((PUSHBACK_KEY, str(round(retry_s * 1000)) if may_retry else "-1"))
    elif row.code in RETRIED_CODES:
        trailers.append((PUSHBACK_KEY, "-1"))
    status = status_pb2.Status(code=_number(row.code), message=message, details=[_packed(one) for one in details])
    return Status(row.code, message, ((DETAILS_KEY, status.SerializeToString()), *trailers))


def failure_of(error: errors.GatewayError) -> common_pb2.Failure:
    """Return `error` as the value that a model's `failure` field carries."""
    row = ROWS[type(error)]
    retry_s = _retry_s(error, row)
    return common_pb2.Failure(
        code=_number(row.code),
        reason=row.reason,
        message=_text(error),
        metadata=_metadata(error, row),
        retry_delay=None if retry_s is None else _duration(retry_s),
    )


def _text(error: errors.GatewayError) -> str:
    return str(error)[:MAX_TEXT_CHARS]


def _metadata(error: errors.GatewayError, row: Row) -> dict[str, str]:
    if row.metadata is None:
        return {}
    return {name: str(value)[:MAX_TEXT_CHARS] for name, value in row.metadata(error).items()}


def _retry_s(error: errors.GatewayError, row: Row) -> float | None:
    return getattr(error, "retry_after_s", row.retry_s)


def _number(code: StatusCode) -> int:
    number: int = code.value[0]
    return number


def _duration(seconds: float) -> duration_pb2.Duration:
    duration = duration_pb2.Duration()
    duration.FromMilliseconds(round(seconds * 1000))
    return duration


def _packed(message: Message) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed


def _named(*fields: str) -> Callable[[errors.GatewayError], Mapping[str, object]]:
    return lambda error: {name: getattr(error, name) for name in fields}


def _load_facts(error: errors.ModelLoadFailed) -> Mapping[str, object]:
    return {**dict(list(error.facts.items())[:MAX_FACTS]), "model": error.model}


def _not_found_facts(error: errors.ModelNotFound) -> Mapping[str, object]:
    return {"model": error.model, "models": ", ".join(error.known)}


def _no_adapter_facts(error: errors.AdapterNotFound) -> Mapping[str, object]:
    return {"adapter": error.adapter, "available": ", ".join(error.known)}


def _loading_facts(error: errors.ModelLoading) -> Mapping[str, object]:
    progress = error.progress
    return {
        "model": error.model,
        "phase": progress.phase,
        "bytes_done": progress.bytes_done,
        "bytes_total": progress.bytes_total,
    }


def _death_facts(error: errors.WorkerDied) -> Mapping[str, object]:
    how = {"signal": error.signal} if error.exit_code is None else {"exit_code": error.exit_code}
    return {"model": error.model, "events_sent": error.events_sent, **how}


def _waited(error: request_errors.SlowReader) -> Mapping[str, object]:
    return {"waited_s": f"{error.waited_s:.1f}"}


def _first_field(error: request_errors.InvalidField | request_errors.UnsupportedOption) -> Mapping[str, object]:
    return {"field": error.violations[0].field}


def _violations(
    error: request_errors.InvalidField | request_errors.UnsupportedOption, reason: str, _message: str
) -> Message:
    return error_details_pb2.BadRequest(
        field_violations=[
            error_details_pb2.BadRequest.FieldViolation(field=one.field, description=one.description, reason=reason)
            for one in error.violations[:MAX_VIOLATIONS]
        ]
    )


def _model(error: errors.ModelNotFound | caller_errors.ModelForbidden, _reason: str, message: str) -> Message:
    return error_details_pb2.ResourceInfo(
        resource_type="pomona.v1.Model", resource_name=error.model, description=message
    )


def _adapter(error: errors.AdapterNotFound, _reason: str, message: str) -> Message:
    return error_details_pb2.ResourceInfo(resource_type="adapter", resource_name=error.adapter, description=message)


def _repository(
    error: pull_errors.RepositoryNotFound | pull_errors.RepositoryForbidden, _reason: str, message: str
) -> Message:
    return error_details_pb2.ResourceInfo(
        resource_type="pomona.v1.Model", resource_name=error.repository, description=message
    )


def _repository_facts(error: pull_errors.RepositoryNotFound | pull_errors.RepositoryForbidden) -> Mapping[str, object]:
    return {"model": error.repository}


def _disk_full(error: pull_errors.DiskFull, reason: str, message: str) -> Message:
    subject = error.repository
    violation = error_details_pb2.PreconditionFailure.Violation(type=reason, subject=subject, description=message)
    return error_details_pb2.PreconditionFailure(violations=[violation])


def _precondition(
    error: errors.ModelLoadFailed | errors.ModelFailed | errors.ModelInUse | errors.TaskNotSupported,
    reason: str,
    message: str,
) -> Message:
    violation = error_details_pb2.PreconditionFailure.Violation(type=reason, subject=error.model, description=message)
    return error_details_pb2.PreconditionFailure(violations=[violation])


def _quota(error: errors.QueueFull, _reason: str, message: str) -> Message:
    violation = error_details_pb2.QuotaFailure.Violation(subject=error.scope, description=message)
    return error_details_pb2.QuotaFailure(violations=[violation])


def _caller_quota(error: caller_errors.RateLimited, _reason: str, message: str) -> Message:
    violation = error_details_pb2.QuotaFailure.Violation(subject=f"caller:{error.caller}", description=message)
    return error_details_pb2.QuotaFailure(violations=[violation])


def _memory(_error: errors.MemoryBudget, _reason: str, message: str) -> Message:
    violation = error_details_pb2.QuotaFailure.Violation(subject="memory", description=message)
    return error_details_pb2.QuotaFailure(violations=[violation])


ROWS: Mapping[type[errors.GatewayError], Row] = {
    request_errors.MalformedRequest: Row(StatusCode.INVALID_ARGUMENT, "MALFORMED_REQUEST"),
    request_errors.InvalidField: Row(StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", _first_field, _violations),
    request_errors.UnsupportedOption: Row(StatusCode.INVALID_ARGUMENT, "UNSUPPORTED_OPTION", _first_field, _violations),
    request_errors.DuplicateRequestId: Row(StatusCode.ALREADY_EXISTS, "DUPLICATE_REQUEST_ID", _named("request_id")),
    request_errors.StreamIdle: Row(StatusCode.ABORTED, "STREAM_IDLE", _named("idle_s")),
    request_errors.SlowReader: Row(StatusCode.RESOURCE_EXHAUSTED, "SLOW_READER", _waited),
    request_errors.RequestQuarantined: Row(StatusCode.INVALID_ARGUMENT, "REQUEST_QUARANTINED", _named("deaths")),
    caller_errors.CredentialsMissing: Row(StatusCode.UNAUTHENTICATED, "CREDENTIALS_MISSING"),
    caller_errors.CredentialsInvalid: Row(StatusCode.UNAUTHENTICATED, "CREDENTIALS_INVALID"),
    caller_errors.CredentialsExpired: Row(StatusCode.UNAUTHENTICATED, "CREDENTIALS_EXPIRED"),
    caller_errors.ScopeMissing: Row(StatusCode.PERMISSION_DENIED, "SCOPE_MISSING", _named("scope")),
    caller_errors.ModelForbidden: Row(StatusCode.PERMISSION_DENIED, "MODEL_FORBIDDEN", _named("model"), _model),
    caller_errors.RateLimited: Row(
        StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED", _named("limit", "most"), _caller_quota
    ),
    errors.ModelNotFound: Row(StatusCode.NOT_FOUND, "MODEL_NOT_FOUND", _not_found_facts, _model),
    errors.ModelLoading: Row(StatusCode.UNAVAILABLE, "MODEL_LOADING", _loading_facts, retry_s=2.0, pushback=False),
    errors.ModelLoadFailed: Row(StatusCode.FAILED_PRECONDITION, "MODEL_LOAD_FAILED", _load_facts, _precondition),
    errors.ModelExceedsMemory: Row(StatusCode.FAILED_PRECONDITION, "MODEL_EXCEEDS_MEMORY", _load_facts, _precondition),
    errors.CheckpointRejected: Row(StatusCode.FAILED_PRECONDITION, "CHECKPOINT_REJECTED", _load_facts, _precondition),
    errors.CheckpointCorrupt: Row(StatusCode.FAILED_PRECONDITION, "CHECKPOINT_CORRUPT", _load_facts, _precondition),
    errors.ModelBackingOff: Row(StatusCode.UNAVAILABLE, "MODEL_BACKING_OFF", _named("model", "attempt")),
    errors.ModelFailed: Row(
        StatusCode.FAILED_PRECONDITION, "MODEL_FAILED", _named("model", "last_exit"), _precondition
    ),
    errors.ModelUnloading: Row(StatusCode.UNAVAILABLE, "MODEL_UNLOADING", _named("model"), retry_s=1.0),
    errors.ModelInUse: Row(StatusCode.FAILED_PRECONDITION, "MODEL_IN_USE", _named("model", "use"), _precondition),
    errors.TaskNotSupported: Row(
        StatusCode.FAILED_PRECONDITION, "TASK_NOT_SUPPORTED", _named("model", "tasks"), _precondition
    ),
    errors.AdapterNotFound: Row(StatusCode.NOT_FOUND, "ADAPTER_NOT_FOUND", _no_adapter_facts, _adapter),
    errors.WorkerDied: Row(StatusCode.UNAVAILABLE, "WORKER_DIED", _death_facts, retry_s=1.0, pushback=False),
    errors.WorkerStalled: Row(
        StatusCode.UNAVAILABLE, "WORKER_STALLED", _named("model", "events_sent"), retry_s=1.0, pushback=False
    ),
    errors.WorkerRestarting: Row(StatusCode.UNAVAILABLE, "WORKER_RESTARTING", _named("model")),
    errors.MemoryBudget: Row(
        StatusCode.RESOURCE_EXHAUSTED,
        "MEMORY_BUDGET",
        _named("model", "needed_bytes", "budget_bytes", "waiting_for"),
        _memory,
        retry_s=5.0,
    ),
    errors.MemoryPressure: Row(StatusCode.RESOURCE_EXHAUSTED, "MEMORY_PRESSURE", _named("used_percent"), retry_s=2.0),
    errors.QueueFull: Row(StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", _named("scope", "depth"), _quota, retry_s=1.0),
    pull_errors.RepositoryNotFound: Row(StatusCode.NOT_FOUND, "MODEL_NOT_FOUND", _repository_facts, _repository),
    pull_errors.RepositoryForbidden: Row(
        StatusCode.PERMISSION_DENIED, "MODEL_FORBIDDEN", _repository_facts, _repository
    ),
    pull_errors.HubUnreachable: Row(StatusCode.UNAVAILABLE, "HUB_UNREACHABLE", _named("repository"), retry_s=5.0),
    pull_errors.DiskFull: Row(
        StatusCode.FAILED_PRECONDITION, "DISK_FULL", _named("repository", "needed_bytes", "free_bytes"), _disk_full
    ),
    errors.ServerDraining: Row(StatusCode.UNAVAILABLE, "SERVER_DRAINING", retry_s=1.0),
    errors.CancelledByOperator: Row(StatusCode.CANCELLED, "CANCELLED_BY_OPERATOR", _named("request_id")),
    errors.DeadlineExceeded: Row(StatusCode.DEADLINE_EXCEEDED, ""),
    errors.InternalError: Row(StatusCode.INTERNAL, "INTERNAL_ERROR", _named("incident")),
}
