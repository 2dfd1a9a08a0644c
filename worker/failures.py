"""Translates the worker's errors, in one table, to gRPC statuses and to `Failure` values."""

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
from worker.errors import (
    MAX_FACT_BYTES,
    AdapterCapacity,
    AdapterConflict,
    AdapterIncompatible,
    AdapterInUse,
    AdapterNotFound,
    AudioNotStored,
    AudioTooLarge,
    AudioTooLong,
    AudioUndecodable,
    CancelledByOperator,
    ChatTemplateRejected,
    CheckpointCorrupt,
    CheckpointRejected,
    ClientGone,
    ConstraintBusy,
    ConstraintInvalid,
    ConstraintTooComplex,
    ContextTooLong,
    CredentialsInvalid,
    DeadlineExceeded,
    FieldError,
    InternalError,
    InvalidField,
    LoadError,
    MalformedRequest,
    ModelExceedsMemory,
    ModelLoadFailed,
    ModelLoading,
    ModelUnloading,
    QueueFull,
    ResponseTooLarge,
    SlowReader,
    StreamIdle,
    StreamOrder,
    TaskNotSupported,
    TemplateBusy,
    UnsupportedOption,
    WorkerError,
    incident_of,
)
from worker.events import Usage

DOMAIN = "pomona"
DETAILS_TRAILER = "grpc-status-details-bin"
PUSHBACK_TRAILER = "grpc-retry-pushback-ms"
USAGE_TRAILER = "pomona-usage-bin"


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
        trailers.append((PUSHBACK_TRAILER, _pushback(row)))
    if usage is not None:
        trailers.append((USAGE_TRAILER, packed_usage(usage)))
    return RpcFailure(row.code, known.message, tuple(trailers))


def packed_usage(usage: Usage) -> bytes:
    """Return token counts as a trailer carries them."""
    body = common_pb2.Usage(prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens)
    body.cached_prompt_tokens = usage.cached_prompt_tokens
    body.reasoning_tokens = usage.reasoning_tokens
    return body.SerializeToString()


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


def _adapter_precondition(error: WorkerError) -> Message:
    violation = error_details_pb2.PreconditionFailure.Violation(
        type=ROWS[type(error)].reason, subject=error.metadata.get("adapter", ""), description=error.message
    )
    return error_details_pb2.PreconditionFailure(violations=[violation])


def _quota(error: WorkerError, subject: str = "requests") -> Message:
    violation = error_details_pb2.QuotaFailure.Violation(subject=subject, description=error.message)
    return error_details_pb2.QuotaFailure(violations=[violation])


def _adapter_quota(error: WorkerError) -> Message:
    return _quota(error, "adapters")


def _resource(error: WorkerError) -> Message:
    name = error.metadata.get("adapter", "")
    return error_details_pb2.ResourceInfo(resource_type="adapter", resource_name=name, description=error.message)


ROWS: dict[type[WorkerError], Row] = {
    MalformedRequest: Row(grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_REQUEST"),
    InvalidField: Row(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", _bad_request),
    UnsupportedOption: Row(grpc.StatusCode.INVALID_ARGUMENT, "UNSUPPORTED_OPTION", _bad_request),
    ContextTooLong: Row(grpc.StatusCode.INVALID_ARGUMENT, "CONTEXT_TOO_LONG", _bad_request),
    ConstraintInvalid: Row(grpc.StatusCode.INVALID_ARGUMENT, "CONSTRAINT_INVALID", _bad_request),
    ConstraintTooComplex: Row(grpc.StatusCode.INVALID_ARGUMENT, "CONSTRAINT_TOO_COMPLEX", _bad_request),
    ChatTemplateRejected: Row(grpc.StatusCode.INVALID_ARGUMENT, "CHAT_TEMPLATE_REJECTED", _bad_request),
    AudioUndecodable: Row(grpc.StatusCode.INVALID_ARGUMENT, "AUDIO_UNDECODABLE", _bad_request),
    AudioTooLong: Row(grpc.StatusCode.INVALID_ARGUMENT, "AUDIO_TOO_LONG", _bad_request),
    AudioTooLarge: Row(grpc.StatusCode.INVALID_ARGUMENT, "AUDIO_TOO_LARGE", _bad_request),
    ResponseTooLarge: Row(grpc.StatusCode.INVALID_ARGUMENT, "RESPONSE_TOO_LARGE", _bad_request),
    StreamOrder: Row(grpc.StatusCode.INVALID_ARGUMENT, "STREAM_ORDER"),
    AdapterNotFound: Row(grpc.StatusCode.NOT_FOUND, "ADAPTER_NOT_FOUND", _resource),
    AdapterConflict: Row(grpc.StatusCode.ALREADY_EXISTS, "ADAPTER_CONFLICT", _resource),
    AdapterIncompatible: Row(grpc.StatusCode.FAILED_PRECONDITION, "ADAPTER_INCOMPATIBLE", _adapter_precondition),
    AdapterInUse: Row(grpc.StatusCode.FAILED_PRECONDITION, "ADAPTER_IN_USE", _adapter_precondition),
    AdapterCapacity: Row(grpc.StatusCode.RESOURCE_EXHAUSTED, "ADAPTER_CAPACITY", _adapter_quota),
    CredentialsInvalid: Row(grpc.StatusCode.UNAUTHENTICATED, "CREDENTIALS_INVALID"),
    QueueFull: Row(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", _quota, retry_after_s=1.0),
    TemplateBusy: Row(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", _quota, retry_after_s=1.0),
    ConstraintBusy: Row(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", _quota, retry_after_s=1.0),
    AudioNotStored: Row(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", _quota, retry_after_s=1.0),
    SlowReader: Row(grpc.StatusCode.RESOURCE_EXHAUSTED, "SLOW_READER"),
    ModelLoading: Row(grpc.StatusCode.UNAVAILABLE, "MODEL_LOADING", names_model=True),
    ModelUnloading: Row(grpc.StatusCode.UNAVAILABLE, "MODEL_UNLOADING", retry_after_s=1.0, names_model=True),
    TaskNotSupported: Row(grpc.StatusCode.FAILED_PRECONDITION, "TASK_NOT_SUPPORTED", _precondition, names_model=True),
    DeadlineExceeded: Row(grpc.StatusCode.DEADLINE_EXCEEDED, None),
    ClientGone: Row(grpc.StatusCode.CANCELLED, None),
    StreamIdle: Row(grpc.StatusCode.ABORTED, "STREAM_IDLE"),
    CancelledByOperator: Row(grpc.StatusCode.CANCELLED, "CANCELLED_BY_OPERATOR"),
    ModelLoadFailed: Row(grpc.StatusCode.FAILED_PRECONDITION, "MODEL_LOAD_FAILED", _precondition, names_model=True),
    ModelExceedsMemory: Row(
        grpc.StatusCode.FAILED_PRECONDITION, "MODEL_EXCEEDS_MEMORY", _precondition, names_model=True
    ),
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


def _pushback(row: Row) -> str:
    """Return when a client library may retry by itself, in milliseconds: -1 is never, and for RESOURCE_EXHAUSTED it is.

    Some libraries, grpc-java's, obey a push-back whatever their policy says of the status, and would fill a full queue.
    """
    if row.code is not grpc.StatusCode.UNAVAILABLE or row.retry_after_s is None:
        return "-1"
    return str(int(row.retry_after_s * 1000))


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
