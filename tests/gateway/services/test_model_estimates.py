"""EstimateModel over its wire: what the one-shot is told, what becomes of its answer, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from pomona.v1 import model_pb2, server_pb2

from gateway.memory import MachineMemory
from gateway.model_status import LoadOptions, ModelState, ModelStatus, WorkerFacts
from tests.gateway.control_plane import control_plane
from tests.gateway.statuses import failure_of
from tests.support.scripted_worker import ScriptedPool

SAYS = """print('{"estimate": {"weightsBytes": "700", "totalBytes": "1000"}, "largestContextTokens": 9}')"""
# What it was told stands where a name can: the wire brings it back.
ECHO = """
import json, sys
told = {"checkpoint": sys.argv[-2], "settings": json.loads(sys.argv[-1])}
print(json.dumps({"device": json.dumps(told)}))
"""
REFUSED = """
import json
print(json.dumps({"reason": "UNSUPPORTED_OPTION", "message": "not here", "metadata": {"field": "options.kv_scheme"}}))
raise SystemExit(3)
"""
CORRUPT = """
import json
print(json.dumps({"reason": "CHECKPOINT_CORRUPT", "message": "x: breaks off", "metadata": {"file": "x"}}))
raise SystemExit(3)
"""


def asked(model: str = "model-a", **options: Any) -> model_pb2.EstimateModelRequest:
    return model_pb2.EstimateModelRequest(model=model, options=model_pb2.LoadOptions(**options))


def loaded(model: str, footprint_bytes: int, running: int = 0, options: LoadOptions | None = None) -> ModelStatus:
    memory = model_pb2.MemoryUse(footprint_bytes=footprint_bytes)
    stats = server_pb2.ModelStats(memory=memory, running_requests=running)
    worker = WorkerFacts("i1", 42, 1.0)
    return ModelStatus(model, ModelState.ACTIVE, worker=worker, stats=stats, options=options or LoadOptions())


async def told(folder: Path, request: Any, pool: ScriptedPool | None = None) -> dict[str, Any]:
    async with control_plane(folder, pool, fit=ECHO) as plane:
        return json.loads((await plane.models.EstimateModel(request, timeout=10)).device)


async def test_the_answer_is_the_one_shots_with_what_the_machine_has_room_for(tmp_path: Path) -> None:
    async with control_plane(tmp_path, fit=SAYS, memory=MachineMemory(2000, 1500)) as plane:
        answer = await plane.models.EstimateModel(asked("alias-a"), timeout=10)
    assert (answer.estimate.weights_bytes, answer.estimate.total_bytes, answer.largest_context_tokens) == (700, 1000, 9)
    assert (answer.fits_now, answer.fits_after_eviction, list(answer.would_evict)) == (True, True, [])
    assert plane.pool.loads == []


async def test_idle_models_in_the_way_are_named(tmp_path: Path) -> None:
    pool = ScriptedPool(
        statuses={"model-b": loaded("model-b", 600), "org/model-c": loaded("org/model-c", 300, running=1)}
    )
    async with control_plane(tmp_path, pool, fit=SAYS, memory=MachineMemory(2000)) as plane:
        answer = await plane.models.EstimateModel(asked(), timeout=10)
    assert (answer.fits_now, answer.fits_after_eviction, list(answer.would_evict)) == (False, True, ["model-b"])


async def test_what_the_model_itself_holds_is_free_for_it(tmp_path: Path) -> None:
    pool = ScriptedPool(statuses={"model-a": loaded("model-a", 900)})
    async with control_plane(tmp_path, pool, fit=SAYS, memory=MachineMemory(2000, 100)) as plane:
        assert (await plane.models.EstimateModel(asked(), timeout=10)).fits_now


async def test_the_one_shot_is_told_what_decides_the_size(tmp_path: Path) -> None:
    said = await told(tmp_path, asked(context_tokens=99, max_batch_rows=3, kv_scheme="turbo"))
    options = {"context_tokens": 99, "max_batch_rows": 3, "kv_scheme": "turbo:k8v3"}
    assert said["settings"] == {**options, "cpu_kernels": True, "budget_bytes": 3000}
    assert said["checkpoint"] == __file__.replace("services/test_model_estimates.py", "control_plane.py")


async def test_options_that_are_not_given_are_those_in_effect(tmp_path: Path) -> None:
    options = LoadOptions(context_tokens=50, max_batch_rows=4, kv_scheme="8")
    pool = ScriptedPool(statuses={"model-a": loaded("model-a", 1, options=options)})
    settings = (await told(tmp_path, asked(max_batch_rows=5), pool))["settings"]
    assert (settings["context_tokens"], settings["max_batch_rows"], settings["kv_scheme"]) == (50, 5, "8")


@pytest.mark.parametrize(
    "options",
    [
        {"context_tokens": 0},
        {"context_tokens": 2**31},
        {"max_batch_rows": 257},
        {"kv_scheme": "3"},
        {"context_tokens": 1_000_001},
    ],
)
async def test_options_have_the_range_of_a_load(tmp_path: Path, options: dict[str, Any]) -> None:
    async with control_plane(tmp_path) as plane:
        failure = await failure_of(plane.models.EstimateModel(asked(**options), timeout=10))
    assert (failure.reason, failure.metadata["field"]) == ("INVALID_FIELD", f"options.{next(iter(options))}")


@pytest.mark.parametrize(
    "options",
    [
        {"draft_model": "b"},
        {"experts_mode": model_pb2.EXPERTS_MODE_MAPPED},
        {"expert_budget_bytes": 1 << 30},
    ],
)
async def test_options_that_this_model_or_build_lacks_are_refused_by_name(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    async with control_plane(tmp_path) as plane:
        failure = await failure_of(plane.models.EstimateModel(asked(**options), timeout=10))
    assert (failure.reason, failure.metadata["field"]) == ("UNSUPPORTED_OPTION", f"options.{next(iter(options))}")


def test_every_field_of_an_estimate_is_honoured_or_refused_by_name() -> None:
    assert {field.name for field in model_pb2.EstimateModelRequest.DESCRIPTOR.fields} == {"model", "options"}
    honoured = {"context_tokens", "max_batch_rows", "kv_scheme", "experts_mode", "expert_budget_bytes"}
    refused = {"draft_model"}
    assert {field.name for field in model_pb2.LoadOptions.DESCRIPTOR.fields} == honoured | refused


@pytest.mark.parametrize(
    ("name", "reason"), [("nobody", "MODEL_NOT_FOUND"), ("../a", "INVALID_FIELD"), ("", "MALFORMED_REQUEST")]
)
async def test_a_model_that_is_not_there_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    async with control_plane(tmp_path) as plane:
        assert (await failure_of(plane.models.EstimateModel(asked(name), timeout=10))).reason == reason


async def test_an_option_that_the_model_lacks_is_refused_by_name(tmp_path: Path) -> None:
    async with control_plane(tmp_path, fit=REFUSED) as plane:
        failure = await failure_of(plane.models.EstimateModel(asked(kv_scheme="8"), timeout=10))
    assert (failure.reason, failure.metadata) == ("UNSUPPORTED_OPTION", {"field": "options.kv_scheme"})
    assert failure.message == "An option is not supported: options.kv_scheme is refused: not here."


@pytest.mark.parametrize(
    ("fit", "reason"), [(CORRUPT, "CHECKPOINT_CORRUPT"), ("print('no json')", "MODEL_LOAD_FAILED")]
)
async def test_a_checkpoint_that_cannot_be_read_is_told_as_a_load_would(tmp_path: Path, fit: str, reason: str) -> None:
    async with control_plane(tmp_path, fit=fit) as plane:
        failure = await failure_of(plane.models.EstimateModel(asked(), timeout=10))
    assert (failure.reason, failure.metadata["model"]) == (reason, "model-a")
