"""LoadModel and UnloadModel over their wire."""

from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from pomona.v1 import model_pb2

from gateway.catalogue import CatalogueModel
from gateway.errors import CheckpointRejected
from gateway.experts import ExpertsWord
from gateway.model_status import Keeping, LoadOptions, ModelState, ModelStatus
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
    honoured = {"model", "return_immediately", "options", "idle_ttl", "pinned", "allow_eviction"}
    honoured |= {"options.context_tokens", "options.max_batch_rows", "options.kv_scheme"}
    honoured |= {"options.experts_mode", "options.expert_budget_bytes"}
    refused = {field for _, field in LOAD_FIELDS_NOT_BUILT}
    fields = {one.name for one in model_pb2.LoadModelRequest.DESCRIPTOR.fields}
    options = {f"options.{one.name}" for one in model_pb2.LoadOptions.DESCRIPTOR.fields}
    assert honoured | refused == fields | options


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({}, (Keeping(), True)),
        ({"pinned": True, "allow_eviction": False}, (Keeping(True), False)),
        ({"pinned": False, "idle_ttl": Duration()}, (Keeping(False, 0.0), True)),
        ({"idle_ttl": Duration(seconds=2, nanos=500_000_000)}, (Keeping(None, 2.5), True)),
    ],
)
async def test_a_load_says_how_long_its_model_stays_and_whether_others_go_for_it(
    tmp_path: Path, fields: dict[str, Any], kept: tuple[Keeping, bool]
) -> None:
    async with control_plane(tmp_path) as plane:
        request = model_pb2.LoadModelRequest(model="model-a", return_immediately=True, **fields)
        await plane.models.LoadModel(request, timeout=10)
        assert plane.pool.keepings == [kept]


@pytest.mark.parametrize("idle_ttl", [Duration(seconds=-1), Duration(seconds=10**9), Duration(seconds=10**11)])
async def test_an_idle_time_that_cannot_be_is_an_invalid_field(tmp_path: Path, idle_ttl: Duration) -> None:
    async with control_plane(tmp_path) as plane:
        request = model_pb2.LoadModelRequest(model="model-a", idle_ttl=idle_ttl)
        failure = await failure_of(plane.models.LoadModel(request, timeout=10))
        assert (failure.reason, failure.metadata["field"], plane.pool.loads) == ("INVALID_FIELD", "idle_ttl", [])


async def test_options_that_can_never_fit_are_refused_before_the_worker_has_to_go(tmp_path: Path) -> None:
    pool = ScriptedPool(statuses={"model-a": ModelStatus("model-a", ModelState.ACTIVE)})
    fit = """print('{"estimate": {"totalBytes": "5000", "budgetBytes": "3000"}}')"""
    async with control_plane(tmp_path, pool, fit=fit) as plane:
        request = model_pb2.LoadModelRequest(model="model-a", options=model_pb2.LoadOptions(max_batch_rows=9))
        failure = await failure_of(plane.models.LoadModel(request, timeout=10))
        assert plane.pool.loads == []
    assert (failure.reason, failure.metadata["needed_bytes"], failure.metadata["budget_bytes"]) == (
        "MODEL_EXCEEDS_MEMORY",
        "5000",
        "3000",
    )


@pytest.mark.parametrize(
    "options",
    [
        {"context_tokens": 0},
        {"context_tokens": 2**31},
        {"max_batch_rows": 0},
        {"kv_scheme": "3"},
        {"kv_scheme": " "},
        {"experts_mode": 9},
        {"expert_budget_bytes": 0},
        {"expert_budget_bytes": 1 << 63},
        {"expert_budget_bytes": 1 << 30, "experts_mode": model_pb2.EXPERTS_MODE_MAPPED},
    ],
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


async def of_experts(_: CatalogueModel) -> model_pb2.Model:
    return model_pb2.Model(experts=model_pb2.RoutedExperts(layers=2, experts_per_layer=8))


SLABS = model_pb2.LoadOptions(experts_mode=model_pb2.EXPERTS_MODE_SLAB, expert_budget_bytes=1 << 30)


async def test_experts_lie_where_they_are_asked_to(tmp_path: Path) -> None:
    async with control_plane(tmp_path, describe=of_experts) as plane:
        request = model_pb2.LoadModelRequest(model="model-a", options=SLABS, return_immediately=True)
        await plane.models.LoadModel(request, timeout=10)
        assert plane.pool.loads == [("model-a", LoadOptions(experts="slab", expert_budget=1 << 30), False)]


TOO_SMALL = """
import json
print(json.dumps({"reason": "MODEL_LOAD_FAILED", "message": "too small", "metadata": {"option": "expert_budget"}}))
raise SystemExit(3)
"""


async def test_experts_that_cannot_lie_so_are_refused_before_a_worker_has_to_go(tmp_path: Path) -> None:
    async with control_plane(tmp_path, describe=of_experts, fit=TOO_SMALL) as plane:
        request = model_pb2.LoadModelRequest(model="model-a", options=SLABS)
        failure = await failure_of(plane.models.LoadModel(request, timeout=10))
        assert plane.pool.loads == []
    assert (failure.reason, failure.metadata["option"]) == ("MODEL_LOAD_FAILED", "expert_budget")


async def test_headers_that_were_just_estimated_are_not_read_again_for_the_load(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    count = f"print('{{}}', file=open({str(runs)!r}, 'a')); print('{{}}')"
    async with control_plane(tmp_path, describe=of_experts, fit=count) as plane:
        await plane.models.EstimateModel(model_pb2.EstimateModelRequest(model="model-a", options=SLABS), timeout=10)
        request = model_pb2.LoadModelRequest(model="model-a", options=SLABS, return_immediately=True)
        await plane.models.LoadModel(request, timeout=10)
        assert runs.read_text().count("{}") == 1
        other = model_pb2.LoadOptions(experts_mode=model_pb2.EXPERTS_MODE_MAPPED)
        await plane.models.EstimateModel(model_pb2.EstimateModelRequest(model="model-a", options=other), timeout=10)
        assert runs.read_text().count("{}") == 2


@pytest.mark.parametrize(
    "options",
    [model_pb2.LoadOptions(context_tokens=1024), model_pb2.LoadOptions(experts_mode=model_pb2.EXPERTS_MODE_AUTO)],
)
async def test_what_the_last_load_left_is_looked_at_too(tmp_path: Path, options: model_pb2.LoadOptions) -> None:
    status = ModelStatus("model-a", ModelState.ACTIVE, options=LoadOptions(experts="mapped"))
    pool = ScriptedPool(statuses={"model-a": status})
    async with control_plane(tmp_path, pool, describe=of_experts, fit=TOO_SMALL) as plane:
        failure = await failure_of(plane.models.LoadModel(model_pb2.LoadModelRequest(model="model-a", options=options)))
        assert plane.pool.loads == []
    assert failure.reason == "MODEL_LOAD_FAILED"


def last_had(mode: ExpertsWord) -> ScriptedPool:
    return ScriptedPool(statuses={"model-a": ModelStatus("model-a", options=LoadOptions(experts=mode))})


BUDGET_ALONE = model_pb2.LoadModelRequest(
    model="model-a", options=model_pb2.LoadOptions(expert_budget_bytes=1 << 30), return_immediately=True
)


@pytest.mark.parametrize("mode", ["resident", "mapped"])
async def test_a_budget_is_refused_where_the_last_load_has_no_slabs(tmp_path: Path, mode: ExpertsWord) -> None:
    async with control_plane(tmp_path, last_had(mode), describe=of_experts) as plane:
        failure = await failure_of(plane.models.LoadModel(BUDGET_ALONE, timeout=10))
        assert plane.pool.loads == []
    assert (failure.reason, failure.metadata["field"]) == ("INVALID_FIELD", "options.expert_budget_bytes")
    assert f"bounds slabs, and the experts are {mode}; it goes with slab and auto" in failure.message


@pytest.mark.parametrize("mode", ["slab", "auto"])
async def test_a_budget_alone_goes_with_the_mode_of_the_last_load(tmp_path: Path, mode: ExpertsWord) -> None:
    async with control_plane(tmp_path, last_had(mode), describe=of_experts) as plane:
        await plane.models.LoadModel(BUDGET_ALONE, timeout=10)
        assert plane.pool.loads == [("model-a", LoadOptions(expert_budget=1 << 30), False)]


@pytest.mark.parametrize("field", ["experts_mode", "expert_budget_bytes"])
async def test_a_model_without_experts_is_asked_for_none(tmp_path: Path, field: str) -> None:
    options = model_pb2.LoadOptions(**{field: getattr(SLABS, field)})
    async with control_plane(tmp_path) as plane:
        failure = await failure_of(
            plane.models.LoadModel(model_pb2.LoadModelRequest(model="model-a", options=options), timeout=10)
        )
        assert plane.pool.loads == []
    assert (failure.reason, failure.metadata["field"]) == ("UNSUPPORTED_OPTION", f"options.{field}")
    assert "this model has no routed experts" in failure.message


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
