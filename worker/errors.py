"""Every failure that a worker can answer with, and its one translation to a gRPC status.

    WorkerError
    ├── RequestError
    │   ├── MalformedRequest
    │   ├── FieldError
    │   │   ├── InvalidField
    │   │   ├── UnsupportedOption
    │   │   ├── ContextTooLong
    │   │   ├── ChatTemplateRejected
    │   │   └── ResponseTooLarge
    │   ├── AdapterNotFound
    │   └── CredentialsInvalid
    ├── CapacityError
    │   ├── QueueFull
    │   ├── TemplateBusy
    │   └── SlowReader
    ├── StateError
    │   ├── ModelLoading
    │   └── ModelUnloading
    ├── EndedError
    │   ├── DeadlineExceeded
    │   ├── ClientGone
    │   └── CancelledByOperator
    ├── LoadError
    │   ├── ModelLoadFailed
    │   ├── CheckpointRejected
    │   └── CheckpointCorrupt
    └── InternalError

A message is for people and reaches clients: it holds no path, no prompt and no text of a foreign exception. What a
program needs is in `metadata`. An exception of any other class is a bug: the client learns its incident, the log its
trace.
"""

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from google.rpc.status_pb2 import Status as RpcStatus
from pomona.v1 import common_pb2

from models.checkpoint.errors import CheckpointError
from worker.clipping import clipped
from worker.events import Usage

DOMAIN = "pomona"
DETAILS_TRAILER = "grpc-status-details-bin"
PUSHBACK_TRAILER = "grpc-retry-pushback-ms"
USAGE_TRAILER = "pomona-usage-bin"
# A status repeats them; all of it stays far below what a call's metadata may hold.
MAX_MESSAGE_BYTES, MAX_FACT_BYTES = 640, 240


class WorkerError(Exception):
    """Root of what the worker raises; `message` is safe for clients, `metadata` carries the facts, both cut to size."""

    def __init__(self, message: str, **metadata: str | int | float) -> None:
        self.message = clipped(message, MAX_MESSAGE_BYTES)
        super().__init__(self.message)
        self.metadata = {key: clipped(str(value), MAX_FACT_BYTES) for key, value in metadata.items()}


class RequestError(WorkerError):
    """Groups what the caller has to change."""


class MalformedRequest(RequestError):
    """Raised when a body is no protobuf or differs from what the gateway read in it."""


class FieldError(RequestError):
    """Groups what is wrong with one field, named by its path from the request down."""

    def __init__(self, field: str, description: str, **metadata: int) -> None:
        self.field = clipped(field, MAX_FACT_BYTES)
        self.description = clipped(description, MAX_MESSAGE_BYTES)
        super().__init__(f"{self.field}: {self.description}", field=field, **metadata)


class InvalidField(FieldError):
    """Raised when a field is out of range or contradicts another."""


class UnsupportedOption(FieldError):
    """Raised when a request sets a field or enum value that this model or this build does not honour or know."""

    def __init__(self, field: str, description: str = "not supported by this model or this build") -> None:
        super().__init__(field, description)


class ContextTooLong(FieldError):
    """Raised when the prompt leaves no room in the context for one more token."""

    def __init__(self, prompt_tokens: int, max_context_tokens: int, field: str = "spec") -> None:
        description = f"{prompt_tokens} tokens; the context of {max_context_tokens} has no room for output"
        super().__init__(field, description, prompt_tokens=prompt_tokens, max_context_tokens=max_context_tokens)


class ChatTemplateRejected(FieldError):
    """Raised when the checkpoint's template fails on these messages, takes too long, or tries to leave its sandbox."""

    def __init__(self, description: str, field: str = "spec.chat") -> None:
        super().__init__(field, description)


class ResponseTooLarge(FieldError):
    """Raised when a unary answer would be larger than the limit."""

    def __init__(self, max_response_bytes: int, field: str = "spec") -> None:
        description = f"the answer is larger than {max_response_bytes} bytes; stream it or ask for less"
        super().__init__(field, description, max_response_bytes=max_response_bytes)


class AdapterNotFound(RequestError):
    """Raised when a request names an adapter that the model does not have."""

    def __init__(self, adapter: str) -> None:
        super().__init__("the model has no such adapter", adapter=adapter)


class CredentialsInvalid(RequestError):
    """Raised when a call on the worker's socket does not come from its gateway."""

    def __init__(self) -> None:
        super().__init__("wrong credentials")


class CapacityError(WorkerError):
    """Groups what passes when the load does."""


class QueueFull(CapacityError):
    """Raised when as many requests run and wait as may."""

    def __init__(self, depth: int) -> None:
        super().__init__(f"the queue is full: {depth} requests run or wait", depth=depth)


class TemplateBusy(CapacityError):
    """Raised when the process that renders chats got too little of the machine's time for this one."""

    def __init__(self, depth: int) -> None:
        super().__init__("the process that renders chats is busy", depth=depth, scope="chat_template")


class SlowReader(CapacityError):
    """Raised when the reader of a stream left its outbox full for too long."""

    def __init__(self, waited_s: float) -> None:
        super().__init__(f"the stream was not read for {waited_s:.0f} s", waited_s=f"{waited_s:.1f}")


class StateError(WorkerError):
    """Groups what depends on the state of the worker."""


class ModelLoading(StateError):
    """Raised when a request comes before the model is loaded."""

    def __init__(self, bytes_done: int = 0, bytes_total: int = 0) -> None:
        super().__init__("the model is still loading", bytes_done=bytes_done, bytes_total=bytes_total)


class ModelUnloading(StateError):
    """Raised when the worker is stopping: the request was not taken, or not finished within the grace."""

    def __init__(self) -> None:
        super().__init__("the model is being unloaded")


class EndedError(WorkerError):
    """Groups requests that were ended before they were done."""


class DeadlineExceeded(EndedError):
    """Raised when the deadline of a request passed."""

    def __init__(self) -> None:
        super().__init__("the deadline passed")


class ClientGone(EndedError):
    """Raised when the caller cancelled its call or went away."""

    def __init__(self) -> None:
        super().__init__("the caller cancelled")


class CancelledByOperator(EndedError):
    """Raised when an operator ended the request."""

    def __init__(self, request_id: str) -> None:
        super().__init__("ended by an operator", request_id=request_id)


class LoadError(WorkerError):
    """Groups why a model could not be loaded."""


class ModelLoadFailed(LoadError):
    """Raised when a load fails for another reason than its checkpoint."""


class CheckpointRejected(LoadError):
    """Raised when the checkpoint is not there or of a kind that is not read."""


class CheckpointCorrupt(LoadError):
    """Raised when the checkpoint contradicts itself."""


class InternalError(WorkerError):
    """Raised when something failed that never should; the log has it under the incident."""

    def __init__(self, incident: str) -> None:
        super().__init__("internal error", incident=incident)
        self.incident = incident


class RpcFailure(NamedTuple):
    """A status as gRPC takes it."""

    code: grpc.StatusCode
    message: str
    trailers: tuple[tuple[str, str | bytes], ...]


def status_of(error: BaseException, *, model: str = "", usage: Usage | None = None) -> RpcFailure:
    """Translate a failure to a gRPC status with its details.

    Args:
        error: any exception; one that is not a `WorkerError` is logged with its trace and becomes an incident.
        model: canonical name for the rows that name the model.
        usage: what the failed request consumed; goes into the trailer `pomona-usage-bin`.
    """
    known = error if isinstance(error, WorkerError) else incident_of(error, "request failed")
    row = ROWS[type(known)]
    trailers: list[tuple[str, str | bytes]] = []
    if row.reason is not None:
        trailers.append((DETAILS_TRAILER, _rpc_status(known, row, model).SerializeToString()))
    if row.code in _PUSHBACK_CODES:
        trailers.append((PUSHBACK_TRAILER, "-1" if row.retry_after_s is None else str(int(row.retry_after_s * 1000))))
    if usage is not None:
        body = common_pb2.Usage(prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens)
        body.cached_prompt_tokens = usage.cached_prompt_tokens
        trailers.append((USAGE_TRAILER, body.SerializeToString()))
    return RpcFailure(row.code, known.message, tuple(trailers))


def failure_of(error: Exception, *, model: str = "") -> common_pb2.Failure:
    """Translate the failure of a load to the message that carries it as a value.

    Args:
        error: a `LoadError`, a checkpoint's error, or any other exception, which is logged and becomes an incident.
        model: canonical name for the rows that name the model.
    """
    known = _load_error_of(error)
    row = ROWS[type(known)]
    retry_delay = None if row.retry_after_s is None else _duration(row.retry_after_s)
    return common_pb2.Failure(
        code=_number(row.code),
        reason=row.reason or "",
        message=known.message,
        metadata=_metadata(known, row, model),
        retry_delay=retry_delay,
    )


def incident_of(error: BaseException, event: str) -> InternalError:
    """Log an unexpected exception with its trace and return what clients may know of it.

    Args:
        error: what was caught.
        event: name of the log line.
    """
    incident = secrets.token_hex(4)
    _log.error(event, exc_info=error, extra={"incident": incident})
    return InternalError(incident)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the error table.

    Attributes:
        reason: a name of `ErrorReason` without its prefix; None where the code says all.
        detail: what else goes into the status, made from the error.
        retry_after_s: when the caller may try again; None: it should not.
        names_model: the metadata carries the model's name.
    """

    code: grpc.StatusCode
    reason: str | None
    detail: Callable[[WorkerError], Message] | None = None
    retry_after_s: float | None = None
    names_model: bool = False


def _bad_request(error: WorkerError) -> Message:
    field = error.metadata.get("field", "")
    description = error.description if isinstance(error, FieldError) else error.message
    violation = error_details_pb2.BadRequest.FieldViolation(
        field=field, description=description, reason=ROWS[type(error)].reason
    )
    return error_details_pb2.BadRequest(field_violations=[violation])


def _precondition(error: WorkerError) -> Message:
    violation = error_details_pb2.PreconditionFailure.Violation(
        type=ROWS[type(error)].reason, subject=error.metadata.get("file", ""), description=error.message
    )
    return error_details_pb2.PreconditionFailure(violations=[violation])


def _quota(error: WorkerError) -> Message:
    violation = error_details_pb2.QuotaFailure.Violation(subject="requests", description=error.message)
    return error_details_pb2.QuotaFailure(violations=[violation])


def _resource(error: WorkerError) -> Message:
    name = error.metadata.get("adapter", "")
    return error_details_pb2.ResourceInfo(resource_type="adapter", resource_name=name, description=error.message)


ROWS: dict[type[WorkerError], Row] = {
    MalformedRequest: Row(grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_REQUEST"),
    InvalidField: Row(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", _bad_request),
    UnsupportedOption: Row(grpc.StatusCode.INVALID_ARGUMENT, "UNSUPPORTED_OPTION", _bad_request),
    ContextTooLong: Row(grpc.StatusCode.INVALID_ARGUMENT, "CONTEXT_TOO_LONG", _bad_request),
    ChatTemplateRejected: Row(grpc.StatusCode.INVALID_ARGUMENT, "CHAT_TEMPLATE_REJECTED", _bad_request),
    ResponseTooLarge: Row(grpc.StatusCode.INVALID_ARGUMENT, "RESPONSE_TOO_LARGE", _bad_request),
    AdapterNotFound: Row(grpc.StatusCode.NOT_FOUND, "ADAPTER_NOT_FOUND", _resource),
    CredentialsInvalid: Row(grpc.StatusCode.UNAUTHENTICATED, "CREDENTIALS_INVALID"),
    QueueFull: Row(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", _quota, retry_after_s=1.0),
    TemplateBusy: Row(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", _quota, retry_after_s=1.0),
    SlowReader: Row(grpc.StatusCode.RESOURCE_EXHAUSTED, "SLOW_READER"),
    ModelLoading: Row(grpc.StatusCode.UNAVAILABLE, "MODEL_LOADING", names_model=True),
    ModelUnloading: Row(grpc.StatusCode.UNAVAILABLE, "MODEL_UNLOADING", retry_after_s=1.0, names_model=True),
    DeadlineExceeded: Row(grpc.StatusCode.DEADLINE_EXCEEDED, None),
    ClientGone: Row(grpc.StatusCode.CANCELLED, None),
    CancelledByOperator: Row(grpc.StatusCode.CANCELLED, "CANCELLED_BY_OPERATOR"),
    ModelLoadFailed: Row(grpc.StatusCode.FAILED_PRECONDITION, "MODEL_LOAD_FAILED", _precondition, names_model=True),
    CheckpointRejected: Row(
        grpc.StatusCode.FAILED_PRECONDITION, "CHECKPOINT_REJECTED", _precondition, names_model=True
    ),
    CheckpointCorrupt: Row(grpc.StatusCode.FAILED_PRECONDITION, "CHECKPOINT_CORRUPT", _precondition, names_model=True),
    InternalError: Row(grpc.StatusCode.INTERNAL, "INTERNAL_ERROR"),
}

_LOAD_ERRORS: dict[str, type[LoadError]] = {
    "MODEL_LOAD_FAILED": ModelLoadFailed,
    "CHECKPOINT_REJECTED": CheckpointRejected,
    "CHECKPOINT_CORRUPT": CheckpointCorrupt,
}

_PUSHBACK_CODES = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED})

_log = logging.getLogger(__name__)


def _rpc_status(error: WorkerError, row: Row, model: str) -> RpcStatus:
    status = RpcStatus(code=_number(row.code), message=error.message)
    info = error_details_pb2.ErrorInfo(reason=row.reason, domain=DOMAIN, metadata=_metadata(error, row, model))
    details: list[Message] = [info]
    if row.detail is not None:
        details.append(row.detail(error))
    if row.retry_after_s is not None:
        details.append(error_details_pb2.RetryInfo(retry_delay=_duration(row.retry_after_s)))
    for detail in details:
        status.details.add().Pack(detail)
    return status


def _metadata(error: WorkerError, row: Row, model: str) -> dict[str, str]:
    return {**error.metadata, "model": clipped(model, MAX_FACT_BYTES)} if row.names_model and model else error.metadata


def _load_error_of(error: Exception) -> WorkerError:
    if isinstance(error, WorkerError):
        return error
    if isinstance(error, CheckpointError):
        return _LOAD_ERRORS[error.reason](str(error), **error.metadata)
    incident = incident_of(error, "load failed").incident
    return ModelLoadFailed("the load failed unexpectedly", incident=incident)


def _number(code: grpc.StatusCode) -> int:
    number, _ = code.value
    return number


def _duration(seconds: float) -> Duration:
    return Duration(seconds=int(seconds), nanos=round(seconds % 1 * 1e9))
