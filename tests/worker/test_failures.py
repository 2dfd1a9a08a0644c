import logging

import grpc
import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from google.rpc.status_pb2 import Status
from pomona.v1 import common_pb2, errors_pb2

import models.checkpoint.errors as checkpoint_errors
from worker.errors import (
    MAX_MESSAGE_BYTES,
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
    InternalError,
    InvalidField,
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
)
from worker.events import Usage
from worker.failures import DETAILS_TRAILER, PUSHBACK_TRAILER, ROWS, USAGE_TRAILER, RpcFailure, failure_of, status_of

SAMPLES: list[WorkerError] = [
    MalformedRequest("no protobuf"),
    InvalidField("spec.sampling.top_p", "above 1"),
    UnsupportedOption("spec.constraint"),
    ContextTooLong(9, 8),
    ConstraintInvalid("spec.constraint.regex", "is not closed"),
    ConstraintTooComplex("spec.constraint.regex", "too deep"),
    ChatTemplateRejected("too slow"),
    AudioUndecodable("no audio"),
    AudioTooLong(600.0),
    AudioTooLarge("too many", 100),
    ResponseTooLarge(100),
    StreamOrder("audio came before the config"),
    AdapterNotFound("a"),
    AdapterConflict("a", "0" * 64),
    AdapterIncompatible("a", "a.safetensors: lora_typo: is no half of a LoRA matrix", file="a.safetensors"),
    AdapterInUse("a", 2),
    AdapterCapacity("a", 3, 2, 4),
    CredentialsInvalid(),
    QueueFull(68),
    TemplateBusy(3),
    ConstraintBusy(3),
    AudioNotStored(),
    SlowReader(30.0),
    ModelLoading(1, 2),
    ModelUnloading(),
    TaskNotSupported("generate"),
    DeadlineExceeded(),
    ClientGone(),
    StreamIdle(30.0),
    CancelledByOperator("r1"),
    ModelLoadFailed("out of luck"),
    ModelExceedsMemory("it takes 2 bytes of the 1 for models", 2, 1),
    CheckpointRejected("no", file="config.json"),
    CheckpointCorrupt("no", file="model.safetensors"),
    InternalError("00000000"),
]
WITH_REASON = [sample for sample in SAMPLES if ROWS[type(sample)].reason is not None]
TO_RETRY = [sample for sample in SAMPLES if ROWS[type(sample)].retry_after_s is not None]


def leaves(root: type[WorkerError]) -> set[type[WorkerError]]:
    children = root.__subclasses__()
    return set[type[WorkerError]]().union(*map(leaves, children)) if children else {root}


def binary_trailer(failure: RpcFailure, key: str) -> bytes:
    value = dict(failure.trailers)[key]
    assert isinstance(value, bytes)
    return value


def details(failure: RpcFailure) -> list[Message]:
    status = Status.FromString(binary_trailer(failure, DETAILS_TRAILER))
    kinds = {
        kind.DESCRIPTOR.full_name: kind
        for kind in (
            error_details_pb2.ErrorInfo,
            error_details_pb2.BadRequest,
            error_details_pb2.PreconditionFailure,
            error_details_pb2.QuotaFailure,
            error_details_pb2.ResourceInfo,
            error_details_pb2.RetryInfo,
        )
    }
    return [kinds[detail.TypeName()].FromString(detail.value) for detail in status.details]


def detail(failure: RpcFailure, kind: type[Message]) -> Message:
    return next(found for found in details(failure) if isinstance(found, kind))


def info(failure: RpcFailure) -> error_details_pb2.ErrorInfo:
    found = detail(failure, error_details_pb2.ErrorInfo)
    assert isinstance(found, error_details_pb2.ErrorInfo)
    return found


def test_every_class_of_the_tree_has_a_row_and_no_row_is_left_over():
    assert leaves(WorkerError) == set(ROWS)


def test_every_class_has_a_sample_here():
    assert {type(sample) for sample in SAMPLES} == set(ROWS)


def test_every_reason_is_one_of_the_contract():
    reasons = {name.removeprefix("ERROR_REASON_") for name, _ in errors_pb2.ErrorReason.items()}
    assert {row.reason for row in ROWS.values() if row.reason is not None} <= reasons


@pytest.mark.parametrize("error", WITH_REASON, ids=lambda error: type(error).__name__)
def test_a_status_carries_reason_domain_and_facts(error: WorkerError):
    found = info(status_of(error))
    assert found.domain == "pomona"
    assert found.reason == ROWS[type(error)].reason
    assert dict(found.metadata) == error.metadata


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_trailers_stay_small(error: WorkerError):
    assert sum(len(key) + len(value) for key, value in status_of(error, model="m").trailers) < 4096


LONG = "ü\ud800\n" * 33_000
LONG_SAMPLES: list[WorkerError] = [
    MalformedRequest(LONG),
    InvalidField(LONG, LONG),
    UnsupportedOption(LONG, LONG),
    ContextTooLong(10**18, 10**18, LONG),
    ConstraintInvalid(LONG, LONG),
    ConstraintTooComplex(LONG, LONG),
    ChatTemplateRejected(LONG, LONG),
    AudioUndecodable(LONG),
    AudioTooLarge(LONG, 10**18),
    ResponseTooLarge(10**18, LONG),
    StreamOrder(LONG),
    AdapterNotFound(LONG, [LONG] * 3),
    AdapterConflict(LONG, LONG),
    AdapterIncompatible(LONG, LONG, file=LONG, key=LONG),
    AdapterInUse(LONG, 10**18),
    AdapterCapacity(LONG, 10**18, 10**18, 10**18),
    CancelledByOperator(LONG),
    ModelLoadFailed(LONG, incident=LONG),
    ModelExceedsMemory(LONG, 2, 1),
    CheckpointRejected(LONG, file=LONG, key=LONG),
    CheckpointCorrupt(LONG, file=LONG, key=LONG),
    InternalError(LONG),
    TaskNotSupported(LONG),
]


def test_every_class_that_takes_a_text_has_a_long_sample():
    busy = {QueueFull, TemplateBusy, ConstraintBusy, AudioNotStored, SlowReader}
    plain = {CredentialsInvalid, ModelLoading, ModelUnloading, DeadlineExceeded, ClientGone, AudioTooLong, StreamIdle}
    assert {type(sample) for sample in LONG_SAMPLES} | busy | plain == set(ROWS)


@pytest.mark.parametrize("error", [*SAMPLES, *LONG_SAMPLES], ids=lambda error: type(error).__name__)
def test_a_status_fits_whatever_a_client_wrote(error: WorkerError):
    failure = status_of(error, model=LONG)
    assert sum(len(key) + len(value) for key, value in failure.trailers) < 4096
    assert len(failure.message.encode()) <= MAX_MESSAGE_BYTES
    assert failure_of(error, model=LONG).ByteSize() < 4096


@pytest.mark.parametrize("error", [DeadlineExceeded(), ClientGone()], ids=lambda error: type(error).__name__)
def test_some_codes_say_all(error: WorkerError):
    assert status_of(error).trailers == ()


def test_a_field_error_names_its_field():
    bad_request = detail(status_of(InvalidField("spec.x", "above 1")), error_details_pb2.BadRequest)
    assert isinstance(bad_request, error_details_pb2.BadRequest)
    violation = bad_request.field_violations[0]
    assert (violation.field, violation.description, violation.reason) == ("spec.x", "above 1", "INVALID_FIELD")


@pytest.mark.parametrize("error", TO_RETRY, ids=lambda error: type(error).__name__)
def test_what_passes_by_itself_says_when(error: WorkerError):
    failure = status_of(error)
    assert detail(failure, error_details_pb2.RetryInfo)
    by_itself = failure.code is grpc.StatusCode.UNAVAILABLE  # overload is never retried by a library
    assert dict(failure.trailers)[PUSHBACK_TRAILER] == ("1000" if by_itself else "-1")


@pytest.mark.parametrize("error", [SlowReader(1), ModelLoading()], ids=lambda error: type(error).__name__)
def test_what_a_retry_would_not_help_says_so(error: WorkerError):
    assert dict(status_of(error).trailers)[PUSHBACK_TRAILER] == "-1"


def test_the_model_is_named_where_the_table_says():
    assert info(status_of(ModelUnloading(), model="m")).metadata["model"] == "m"


def test_usage_of_a_failed_request_is_in_the_trailer():
    failure = status_of(SlowReader(1), usage=Usage(3, 4))
    usage = common_pb2.Usage.FromString(binary_trailer(failure, USAGE_TRAILER))
    assert (usage.prompt_tokens, usage.completion_tokens) == (3, 4)


def test_an_unknown_exception_becomes_an_incident_and_its_trace_goes_to_the_log(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.ERROR):
        failure = status_of(ValueError("/secret/path"))
    incident = info(failure).metadata["incident"]
    assert failure.code is grpc.StatusCode.INTERNAL
    assert "secret" not in failure.message
    assert len(incident) == 8
    assert vars(caplog.records[0])["incident"] == incident
    assert "/secret/path" in caplog.text


@pytest.mark.parametrize(
    ("error", "reason", "code"),
    [
        (checkpoint_errors.CheckpointMissing("is not there", file="x"), "CHECKPOINT_REJECTED", 9),
        (checkpoint_errors.CheckpointRejected("no", file="config.json", key="k"), "CHECKPOINT_REJECTED", 9),
        (checkpoint_errors.CheckpointCorrupt("no", file="x"), "CHECKPOINT_CORRUPT", 9),
        (CheckpointCorrupt("no"), "CHECKPOINT_CORRUPT", 9),
        (MemoryError(), "MODEL_LOAD_FAILED", 9),
    ],
)
def test_a_failed_load_is_told_as_a_value(error: Exception, reason: str, code: int):
    failure = failure_of(error, model="m")
    assert (failure.reason, failure.code, failure.metadata["model"]) == (reason, code, "m")


def test_a_failed_load_names_file_and_key():
    failure = failure_of(checkpoint_errors.CheckpointRejected("no", file="config.json", key="rope"))
    assert (failure.metadata["file"], failure.metadata["key"]) == ("config.json", "rope")
