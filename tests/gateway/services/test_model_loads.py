"""LoadModel and UnloadModel over their wire."""

from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from pomona.v1 import model_pb2

from gateway.errors import CheckpointRejected
from gateway.model_status import LoadOptions
from tests.gateway.control_plane import control_plane
from tests.gateway.statuses import failure_of
from tests.support.scripted_worker import ScriptedPool
from tests.support.waiting import eventually


async def test_a_load_returns_when_the_model_is_ready(tmp_path: Path) -> None:
    async with control_plane(tmp_path) as plane:
        options = model_pb2.LoadOptions(context_tokens=512, max_batch_rows=2, kv_scheme="turbo:k8v4")
        call = plane.models.LoadModel(model_pb2.LoadModelRequest(model="alias-a", options=options), timeout=10)
        await eventually(lambda: len(plane.pool.loads) == 1)
        assert plane.pool.loads == [("model-a", LoadOptions(512, 2, "turbo:k8v4"), True)]
        assert not call.done()
        plane.pool.may_load.set()
        assert (await call).model.state == model_pb2.MODEL_STATE_ACTIVE


async def test_a_load_can_return_at_once(tmp_path: Path) -> None:
    async with control_plane(tmp_path) as plane:
        request = model_pb2.LoadModelRequest(model="model-a", return_immediately=True)
        answer = await plane.models.LoadModel(request, timeout=10)
        assert (answer.model.state, plane.pool.loads) == (
            model_pb2.MODEL_STATE_LOADING,
            [("model-a", None, False)],
        )


async def test_a_load_that_failed_says_why(tmp_path: Path) -> None:
    pool = ScriptedPool(load_error=CheckpointRejected("model-a", "no.", {"file": "config.json"}))
    async with control_plane(tmp_path, pool) as plane:
        failure = await failure_of(plane.models.LoadModel(model_pb2.LoadModelRequest(model="model-a"), timeout=10))
    assert (failure.code, failure.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "CHECKPOINT_REJECTED")
    assert failure.metadata["file"] == "config.json"


LOAD_FIELDS_NOT_BUILT: list[tuple[Any, str]] = [
    (model_pb2.LoadModelRequest(model="model-a", idle_ttl=Duration(seconds=1)), "idle_ttl"),
    (model_pb2.LoadModelRequest(model="model-a", pinned=False), "pinned"),
    (model_pb2.LoadModelRequest(model="model-a", allow_eviction=True), "allow_eviction"),
    (
        model_pb2.LoadModelRequest(
            model="model-a", options=model_pb2.LoadOptions(experts_mode=model_pb2.EXPERTS_MODE_SLAB)
        ),
        "options.experts_mode",
    ),
    (
        model_pb2.LoadModelRequest(model="model-a", options=model_pb2.LoadOptions(expert_budget_bytes=0)),
        "options.expert_budget_bytes",
    ),
    (
        model_pb2.LoadModelRequest(model="model-a", options=model_pb2.LoadOptions(draft_model="b")),
        "options.draft_model",
    ),
]


@pytest.mark.parametrize(
    ("request_", "field"), LOAD_FIELDS_NOT_BUILT, ids=[field for _, field in LOAD_FIELDS_NOT_BUILT]
)
async def test_an_option_that_is_not_built_is_refused_by_name(tmp_path: Path, request_: Any, field: str) -> None:
    async with control_plane(tmp_path) as plane:
        failure = await failure_of(plane.models.LoadModel(request_, timeout=10))
        assert (failure.reason, failure.metadata["field"], plane.pool.loads) == ("UNSUPPORTED_OPTION", field, [])
        violation: Any = failure.details["BadRequest"]
        assert violation.field_violations[0].field == field


def test_every_field_of_a_load_is_honoured_or_refused_by_name() -> None:
    honoured = {"model", "return_immediately", "options"}
    honoured |= {"options.context_tokens", "options.max_batch_rows", "options.kv_scheme"}
    refused = {field for _, field in LOAD_FIELDS_NOT_BUILT}
    fields = {one.name for one in model_pb2.LoadModelRequest.DESCRIPTOR.fields}
    options = {f"options.{one.name}" for one in model_pb2.LoadOptions.DESCRIPTOR.fields}
    assert honoured | refused == fields | options


@pytest.mark.parametrize(
    "options",
    [{"context_tokens": 0}, {"context_tokens": 2**31}, {"max_batch_rows": 0}, {"kv_scheme": "3"}, {"kv_scheme": " "}],
)
async def test_load_options_have_a_range(tmp_path: Path, options: dict[str, Any]) -> None:
    async with control_plane(tmp_path) as plane:
        request = model_pb2.LoadModelRequest(model="model-a", options=model_pb2.LoadOptions(**options))
        failure = await failure_of(plane.models.LoadModel(request, timeout=10))
        assert plane.pool.loads == []
    assert (failure.reason, failure.metadata["field"]) == ("INVALID_FIELD", f"options.{next(iter(options))}")


@pytest.mark.parametrize(
    ("scheme", "words"),
    [
        ("6", "must be none, 8, 4, config, turbo or turbo:k<bits>v<bits>, then :g<size> (8 and 4) and :s<start>"),
        ("4:s33", "starts at 33; it must be a multiple of 32 tokens"),
        ("turbo:8", 'for turbo must look like "turbo:k<bits>v<bits>"'),
        ("turbo:k9v9", "has turbo key bits 9; they must be one of 2, 4, 5, 8"),
        ("turbo:k8v9", "has turbo value bits 9; they must be one of 2, 3, 4, 5, 8"),
    ],
)
async def test_a_scheme_that_is_not_offered_touches_no_worker(tmp_path: Path, scheme: str, words: str) -> None:
    async with control_plane(tmp_path) as plane:
        request = model_pb2.LoadModelRequest(model="model-a", options=model_pb2.LoadOptions(kv_scheme=scheme))
        failure = await failure_of(plane.models.LoadModel(request, timeout=10))
        assert plane.pool.loads == []
    assert failure.message == f"A field is invalid: options.kv_scheme {words}."


async def test_a_range_is_told_in_plain_numbers(tmp_path: Path) -> None:
    async with control_plane(tmp_path) as plane:
        request = model_pb2.LoadModelRequest(model="model-a", options=model_pb2.LoadOptions(context_tokens=0))
        failure = await failure_of(plane.models.LoadModel(request, timeout=10))
    assert failure.message == "A field is invalid: options.context_tokens is not within 1 to 16777216."


async def test_turbo_loads_as_what_it_stands_for(tmp_path: Path) -> None:
    async with control_plane(tmp_path) as plane:
        options = model_pb2.LoadOptions(kv_scheme="turbo")
        request = model_pb2.LoadModelRequest(model="model-a", options=options, return_immediately=True)
        await plane.models.LoadModel(request, timeout=10)
        assert plane.pool.loads == [("model-a", LoadOptions(kv_scheme="turbo:k8v3"), False)]


async def test_a_server_that_drains_loads_nothing(tmp_path: Path) -> None:
    async with control_plane(tmp_path) as plane:
        parts: Any = plane.parts
        parts.admission.close()
        failure = await failure_of(plane.models.LoadModel(model_pb2.LoadModelRequest(model="model-a"), timeout=10))
    assert failure.reason == "SERVER_DRAINING"


@pytest.mark.parametrize(
    ("grace", "grace_s"), [(None, 30.0), (Duration(), 0.0), (Duration(seconds=2, nanos=500_000_000), 2.5)]
)
async def test_an_unload_says_what_it_freed(tmp_path: Path, grace: Duration | None, grace_s: float) -> None:
    async with control_plane(tmp_path) as plane:
        request = model_pb2.UnloadModelRequest(model="alias-a", grace=grace)
        answer = await plane.models.UnloadModel(request, timeout=10)
        assert plane.pool.unloads == [("model-a", grace_s)]
    assert (answer.freed_bytes, answer.model.state) == (1234, model_pb2.MODEL_STATE_UNLOADED)


@pytest.mark.parametrize("grace", [Duration(seconds=-1), Duration(seconds=10**6), Duration(seconds=10**11)])
async def test_a_grace_that_cannot_be_is_an_invalid_field(tmp_path: Path, grace: Duration) -> None:
    async with control_plane(tmp_path) as plane:
        failure = await failure_of(plane.models.UnloadModel(model_pb2.UnloadModelRequest(model="model-a", grace=grace)))
        assert (failure.reason, failure.metadata["field"], plane.pool.unloads) == ("INVALID_FIELD", "grace", [])


async def test_a_context_longer_than_the_checkpoint_s_is_refused_and_not_cut_down(tmp_path: Path) -> None:
    request = model_pb2.LoadModelRequest(model="model-a", options=model_pb2.LoadOptions(context_tokens=2_000_000))
    async with control_plane(tmp_path) as plane:
        failure = await failure_of(plane.models.LoadModel(request))
    assert (failure.reason, failure.metadata["field"]) == ("INVALID_FIELD", "options.context_tokens")
