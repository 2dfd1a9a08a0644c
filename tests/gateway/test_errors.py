"""The tree of errors, and the one table that turns it into statuses."""

import re
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc import StatusCode
from pomona.v1 import errors_pb2, model_pb2

from gateway import caller_errors, errors, pull_errors, request_errors
from gateway.errors import GatewayError
from gateway.model_status import LoadProgress, ModelState
from gateway.request_errors import Violation
from gateway.status import ROWS, failure_of, status_of

GROUPS = {
    errors.GatewayError,
    errors.RequestError,
    errors.CallerError,
    errors.ModelError,
    errors.LoadError,
    errors.WorkerError,
    errors.CapacityError,
    errors.PullError,
}
MODEL = "org/model"
SAMPLES: list[GatewayError] = [
    request_errors.MalformedRequest("it ends within a field"),
    request_errors.InvalidField((Violation("priority", "is not within -128 to 127"),)),
    request_errors.UnsupportedOption((Violation("options.kv_scheme", "is not built yet"),)),
    request_errors.DuplicateRequestId("r"),
    request_errors.StreamIdle(30.0),
    request_errors.SlowReader(60.0),
    errors.ModelNotFound(MODEL, ("a", "b")),
    errors.ModelLoading(MODEL, LoadProgress("weights", 5, 10)),
    errors.ModelLoadFailed(MODEL, "its worker did not say why."),
    errors.ModelExceedsMemory(
        MODEL, "it takes 2 bytes of the 1 for models.", {"needed_bytes": "2", "budget_bytes": "1"}
    ),
    errors.CheckpointRejected(MODEL, "config.json has no hidden_size.", {"file": "config.json", "key": "hidden_size"}),
    errors.CheckpointCorrupt(MODEL, "model.safetensors is too short.", {"file": "model.safetensors"}),
    errors.ModelBackingOff(MODEL, 3, 1.25),
    errors.ModelFailed(MODEL, "SIGKILL"),
    errors.ModelUnloading(MODEL),
    errors.ModelInUse(MODEL, "loaded"),
    errors.TaskNotSupported(MODEL, "generate"),
    errors.AdapterNotFound("formal", ("terse",)),
    errors.WorkerDied(MODEL, 7, "SIGKILL"),
    errors.WorkerStalled(MODEL, 7),
    errors.WorkerRestarting(MODEL, 2.0),
    errors.QueueFull(MODEL, 64),
    errors.MemoryBudget(MODEL, "3.00 GB of memory, of which 1.00 GB are free", 3_000_000_000, 8_000_000_000),
    errors.MemoryPressure(96),
    request_errors.RequestQuarantined(2),
    caller_errors.ScopeMissing("pull", "its setting allow_pull is off"),
    caller_errors.CredentialsMissing(),
    caller_errors.CredentialsInvalid(),
    caller_errors.CredentialsExpired(),
    caller_errors.ModelForbidden(MODEL),
    caller_errors.RateLimited("ci", "rate", 60, 0.5),
    pull_errors.RepositoryNotFound(MODEL, "the hub has no revision v9 of it"),
    pull_errors.RepositoryForbidden(MODEL, "it is gated"),
    pull_errors.HubUnreachable(MODEL, "the hub does not answer"),
    pull_errors.DiskFull(MODEL, 2_000_000_000, 1_000_000_000),
    errors.ServerDraining(),
    errors.CancelledByOperator("r"),
    errors.DeadlineExceeded(),
    errors.InternalError("0badcafe"),
]
DETAIL_TYPES: list[Any] = [
    error_details_pb2.ErrorInfo,
    error_details_pb2.BadRequest,
    error_details_pb2.ResourceInfo,
    error_details_pb2.PreconditionFailure,
    error_details_pb2.QuotaFailure,
    error_details_pb2.RetryInfo,
]


def classes_below(kind: type[GatewayError]) -> set[type[GatewayError]]:
    return {kind}.union(*(classes_below(child) for child in kind.__subclasses__()))


def documented() -> dict[str, tuple[str, set[str]]]:
    """Return reason -> (status, other details) of the table for people."""
    text = (Path(__file__).parents[2] / "docs" / "errors.md").read_text()
    rows = re.findall(r"^\| ([A-Z_]+) \| ([A-Z_]+) \|[^|]*\|[^|]*\|([^|]*)\|", text, re.MULTILINE)
    return {reason: (code, {one.strip() for one in details.split(",")} - {""}) for reason, code, details in rows}


def details_of(error: GatewayError) -> dict[str, Message]:
    trailers = dict(status_of(error).trailers)
    status = status_pb2.Status.FromString(bytes(trailers["grpc-status-details-bin"]))  # type: ignore[arg-type]
    found: dict[str, Message] = {}
    for packed in status.details:
        for kind in DETAIL_TYPES:
            if packed.Is(kind.DESCRIPTOR):
                found[kind.DESCRIPTOR.name] = kind.FromString(packed.value)
    assert len(found) == len(status.details)
    return found


def test_every_error_that_can_be_raised_has_a_row_and_a_sample() -> None:
    leaves = classes_below(GatewayError) - GROUPS
    assert leaves == set(ROWS)
    assert leaves == {type(sample) for sample in SAMPLES}


def test_every_error_says_when_it_is_raised() -> None:
    for kind in classes_below(GatewayError):
        assert (kind.__doc__ or "").startswith("Raised when "), kind


def test_every_reason_is_one_of_the_contract() -> None:
    known = {name.removeprefix("ERROR_REASON_") for name in errors_pb2.ErrorReason.keys()}  # noqa: SIM118 - no mapping
    assert {row.reason for row in ROWS.values()} - {""} <= known


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_a_status_is_what_the_table_for_people_says(error: GatewayError) -> None:
    row = ROWS[type(error)]
    if not row.reason:
        assert (row.code, status_of(error).trailers) == (StatusCode.DEADLINE_EXCEEDED, ())
        return
    code, others = documented()[row.reason]
    details = details_of(error)
    info: Any = details.pop("ErrorInfo")
    assert (status_of(error).code.name, info.reason, info.domain) == (code, row.reason, "pomona")
    assert set(details) == others


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_errors_to_be_retried_say_when_and_how(error: GatewayError) -> None:
    status = status_of(error)
    trailers = dict(status.trailers)
    is_retriable = status.code in {StatusCode.UNAVAILABLE, StatusCode.RESOURCE_EXHAUSTED}
    assert ("grpc-retry-pushback-ms" in trailers) is is_retriable


def test_a_request_that_had_begun_is_not_retried_by_a_library() -> None:
    lost = (errors.WorkerDied(MODEL, 0), errors.WorkerStalled(MODEL, 0))
    # A client that does not read would not read again.
    for error in (*lost, errors.ModelLoading(MODEL), request_errors.SlowReader(60.0)):
        assert dict(status_of(error).trailers)["grpc-retry-pushback-ms"] == "-1"


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_overload_is_never_retried_by_a_library(error: GatewayError) -> None:
    status = status_of(error)
    pushback = dict(status.trailers).get("grpc-retry-pushback-ms", "-1")
    assert pushback == "-1" or status.code is StatusCode.UNAVAILABLE


def test_a_pause_is_told_as_it_is() -> None:
    error = errors.ModelBackingOff(MODEL, 3, 1.25)
    retry: Any = details_of(error)["RetryInfo"]
    assert retry.retry_delay.ToMilliseconds() == 1250
    assert dict(status_of(error).trailers)["grpc-retry-pushback-ms"] == "1250"


def test_a_status_stays_small_whatever_is_in_it() -> None:
    long = "x" * 10_000
    facts = {f"key{number}": long for number in range(100)}
    violations = tuple(Violation("f" * 50, long[:200]) for _ in range(1000))
    many = tuple(f"model-{number}" for number in range(10_000))
    for error in (
        errors.CheckpointRejected(MODEL, long, facts),
        request_errors.InvalidField(violations),
        errors.ModelNotFound(MODEL, many),
    ):
        status = status_of(error)
        assert len(status.message) + sum(len(key) + len(value) for key, value in status.trailers) < 4096


def test_facts_of_a_checkpoint_reach_the_client() -> None:
    info: Any = details_of(errors.CheckpointRejected(MODEL, "wrong.", {"file": "config.json", "key": "k"}))["ErrorInfo"]
    assert dict(info.metadata) == {"model": MODEL, "file": "config.json", "key": "k"}


def test_a_failure_value_says_what_the_status_says() -> None:
    failure = failure_of(errors.ModelBackingOff(MODEL, 3, 1.25))
    assert (failure.code, failure.reason, failure.metadata["attempt"]) == (14, "MODEL_BACKING_OFF", "3")
    assert failure.retry_delay.ToMilliseconds() == 1250


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("CHECKPOINT_REJECTED", errors.CheckpointRejected),
        ("CHECKPOINT_CORRUPT", errors.CheckpointCorrupt),
        ("MODEL_LOAD_FAILED", errors.ModelLoadFailed),
        ("MODEL_EXCEEDS_MEMORY", errors.ModelExceedsMemory),
        ("SOMETHING_ELSE", errors.ModelLoadFailed),
    ],
)
def test_what_a_worker_says_of_a_failed_load_becomes_an_error(reason: str, kind: type[GatewayError]) -> None:
    assert type(errors.load_error(MODEL, reason, "why.", {})) is kind


def test_the_states_are_those_of_the_contract() -> None:
    wire = {name.removeprefix("MODEL_STATE_"): number for name, number in model_pb2.ModelState.items()}
    assert {state.name: state.value for state in ModelState} == {k: v for k, v in wire.items() if k != "UNSPECIFIED"}
