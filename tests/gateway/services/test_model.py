"""ModelService over its wire."""

import asyncio
import tracemalloc
from pathlib import Path
from typing import Any

import grpc
import pytest
from pomona.v1 import model_pb2, server_pb2

from gateway.catalogue import CatalogueModel
from gateway.errors import CheckpointRejected
from gateway.experts import ExpertsWord
from gateway.model_status import LoadOptions, LoadProgress, ModelState, ModelStatus, WorkerFacts
from gateway.request_errors import UnsupportedOption
from gateway.services.registration import MAX_CONTROL_BYTES
from gateway.services.strict import refuse_unknown
from tests.gateway.control_plane import MODELS, control_plane
from tests.gateway.statuses import failure_of
from tests.support.scripted_worker import ScriptedPool
from tests.support.waiting import eventually

NAMES = [model.name for model in MODELS]


async def test_lists_every_model_by_name(tmp_path: Path) -> None:
    async with control_plane(tmp_path) as plane:
        answer = await plane.models.ListModels(model_pb2.ListModelsRequest())
    assert [model.model for model in answer.models] == NAMES
    assert answer.next_page_token == ""
    assert list(answer.models[0].aliases) == ["alias-a"]
    assert {model.state for model in answer.models} == {model_pb2.MODEL_STATE_UNLOADED}
    assert answer.models[0].architecture == "llama"


async def test_pages_hold_every_model_once(tmp_path: Path) -> None:
    names: list[str] = []
    token = ""
    async with control_plane(tmp_path) as plane:
        for _ in NAMES:
            answer = await plane.models.ListModels(model_pb2.ListModelsRequest(page_size=1, page_token=token))
            names += [model.model for model in answer.models]
            token = answer.next_page_token
    assert (names, token) == (NAMES, "")


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (model_pb2.ListModelsRequest(page_size=-1), "page_size"),
        (model_pb2.ListModelsRequest(page_size=1001), "page_size"),
        (model_pb2.ListModelsRequest(page_token="../x"), "page_token"),
    ],
)
async def test_a_page_that_cannot_be_is_an_invalid_field(tmp_path: Path, request_: Any, field: str) -> None:
    async with control_plane(tmp_path) as plane:
        failure = await failure_of(plane.models.ListModels(request_))
    assert (failure.code, failure.reason, failure.metadata["field"]) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "INVALID_FIELD",
        field,
    )


async def test_lists_loaded_models_alone_on_request(tmp_path: Path) -> None:
    pool = ScriptedPool(statuses={"model-b": ModelStatus("model-b", ModelState.ACTIVE)})
    async with control_plane(tmp_path, pool) as plane:
        answer = await plane.models.ListModels(model_pb2.ListModelsRequest(loaded_only=True))
    assert [model.model for model in answer.models] == ["model-b"]


async def test_a_model_is_found_by_its_alias(tmp_path: Path) -> None:
    async with control_plane(tmp_path) as plane:
        answer = await plane.models.GetModel(model_pb2.GetModelRequest(model="alias-a"))
    assert answer.model.model == "model-a"


async def test_a_loaded_model_shows_what_its_worker_said(tmp_path: Path) -> None:
    facts = model_pb2.Model(
        model="x",
        architecture="llama",
        revision="abc",
        limits=model_pb2.ModelLimits(max_context_tokens=2048),
        memory=model_pb2.MemoryUse(weights_bytes=5),
        runtime=model_pb2.ModelRuntime(options=model_pb2.LoadOptions(kv_scheme="turbo:k8v3")),
    )
    memory = model_pb2.MemoryUse(footprint_bytes=77, cache_bytes=9, prefix_cache_bytes=4)
    status = ModelStatus(
        "model-a",
        ModelState.ACTIVE,
        worker=WorkerFacts("i1", 42, 100.5, 2, "SIGKILL"),
        facts=facts,
        stats=server_pb2.ModelStats(memory=memory),
        last_used_s=3.25,
        pinned=True,
        unload_time_s=7.5,
        reserved_bytes=77,
    )
    async with control_plane(tmp_path, ScriptedPool(statuses={"model-a": status})) as plane:
        model = (await plane.models.GetModel(model_pb2.GetModelRequest(model="model-a"))).model
    assert (model.model, model.revision, model.limits.max_context_tokens) == ("model-a", "abc", 2048)
    worker = model.workers[0]
    assert (worker.instance_id, worker.pid, worker.restart_count, worker.last_exit) == ("i1", 42, 2, "SIGKILL")
    assert (worker.start_time.ToMilliseconds(), model.last_used_time.ToMilliseconds()) == (100_500, 3250)
    assert (model.pinned, model.unload_time.ToMilliseconds(), model.memory.reserved_bytes) == (True, 7500, 77)
    assert (model.memory.footprint_bytes, model.memory.weights_bytes) == (77, 5)
    assert (model.memory.cache_bytes, model.memory.prefix_cache_bytes) == (9, 4)
    assert model.runtime.options.kv_scheme == "turbo:k8v3"


@pytest.mark.parametrize(("chosen", "shown"), [(None, "none"), ("turbo", "turbo")])
async def test_a_model_that_is_not_loaded_shows_how_it_would_be(tmp_path: Path, chosen: str | None, shown: str) -> None:
    status = ModelStatus("model-a", ModelState.LOADING, options=LoadOptions(kv_scheme=chosen))
    async with control_plane(tmp_path, ScriptedPool(statuses={"model-a": status})) as plane:
        model = (await plane.models.GetModel(model_pb2.GetModelRequest(model="model-a"))).model
    assert (model.runtime.options.kv_scheme, model.limits.max_batch_rows) == (shown, 16)
    assert model.limits.max_output_tokens == model.limits.max_context_tokens - 1 > 0


async def of_experts(_: CatalogueModel) -> model_pb2.Model:
    return model_pb2.Model(experts=model_pb2.RoutedExperts(layers=2, experts_per_layer=8))


@pytest.mark.parametrize(
    ("chosen", "shown"), [(None, model_pb2.EXPERTS_MODE_AUTO), ("slab", model_pb2.EXPERTS_MODE_SLAB)]
)
async def test_experts_of_a_model_that_is_not_loaded_lie_where_they_were_wanted(
    tmp_path: Path, chosen: ExpertsWord | None, shown: model_pb2.ExpertsMode.ValueType
) -> None:
    status = ModelStatus("model-a", ModelState.LOADING, options=LoadOptions(experts=chosen))
    async with control_plane(tmp_path, ScriptedPool(statuses={"model-a": status}), describe=of_experts) as plane:
        model = (await plane.models.GetModel(model_pb2.GetModelRequest(model="model-a"))).model
    assert (model.experts.experts_per_layer, model.runtime.options.experts_mode) == (8, shown)


async def test_a_load_shows_its_progress(tmp_path: Path) -> None:
    status = ModelStatus("model-a", ModelState.LOADING, progress=LoadProgress("weights", 5, 10))
    async with control_plane(tmp_path, ScriptedPool(statuses={"model-a": status})) as plane:
        model = (await plane.models.GetModel(model_pb2.GetModelRequest(model="model-a"))).model
    assert (model.load_progress.phase, model.load_progress.bytes_done, model.load_progress.bytes_total) == (
        "weights",
        5,
        10,
    )


async def test_a_failed_model_says_why(tmp_path: Path) -> None:
    error = CheckpointRejected("model-a", "config.json has no hidden_size.", {"file": "config.json"})
    status = ModelStatus("model-a", ModelState.FAILED, failure=error)
    async with control_plane(tmp_path, ScriptedPool(statuses={"model-a": status})) as plane:
        model = (await plane.models.GetModel(model_pb2.GetModelRequest(model="model-a"))).model
    assert (model.state, model.failure.reason) == (model_pb2.MODEL_STATE_FAILED, "CHECKPOINT_REJECTED")
    assert model.failure.metadata["file"] == "config.json"


@pytest.mark.parametrize(
    ("name", "reason"), [("nobody", "MODEL_NOT_FOUND"), ("../a", "INVALID_FIELD"), ("", "MALFORMED_REQUEST")]
)
async def test_a_model_that_is_not_there_is_refused_everywhere(tmp_path: Path, name: str, reason: str) -> None:
    async with control_plane(tmp_path) as plane:
        calls = [
            plane.models.GetModel(model_pb2.GetModelRequest(model=name)),
            plane.models.LoadModel(model_pb2.LoadModelRequest(model=name)),
            plane.models.UnloadModel(model_pb2.UnloadModelRequest(model=name)),
            plane.models.WatchModels(model_pb2.WatchModelsRequest(models=[name])),
        ]
        assert [(await failure_of(call)).reason for call in calls] == [reason] * 4


async def test_a_watch_begins_with_everything_and_goes_on_with_changes(tmp_path: Path) -> None:
    async with control_plane(tmp_path) as plane:
        call = plane.models.WatchModels(model_pb2.WatchModelsRequest(), timeout=10)
        events = aiter(call)
        first = [await anext(events) for _ in range(4)]
        assert [event.updated.model for event in first[:3]] == NAMES
        assert first[3].WhichOneof("event") == "snapshot_complete"
        plane.pool.set(ModelStatus("model-b", ModelState.LOADING))
        change = await anext(events)
        assert (change.updated.model, change.updated.state) == ("model-b", model_pb2.MODEL_STATE_LOADING)
        assert [event.event_number for event in (*first, change)] == [0, 1, 2, 3, 4]
        call.cancel()


async def test_a_watch_of_some_models_is_silent_about_the_others(tmp_path: Path) -> None:
    async with control_plane(tmp_path) as plane:
        call = plane.models.WatchModels(model_pb2.WatchModelsRequest(models=["alias-a"]), timeout=10)
        events = aiter(call)
        assert [(await anext(events)).WhichOneof("event") for _ in range(2)] == ["updated", "snapshot_complete"]
        plane.pool.set(ModelStatus("model-b", ModelState.LOADING))
        plane.pool.set(ModelStatus("model-a", ModelState.LOADING))
        assert (await anext(events)).updated.model == "model-a"
        call.cancel()


@pytest.mark.parametrize(
    ("body", "field"),
    [(b"\x0a\x07model-a\xf8\x07\x01", "127"), (b"\x0a\x07model-a\x12\x03\xf8\x07\x01", "options.127")],
)
async def test_an_unknown_field_is_refused_by_its_number(tmp_path: Path, body: bytes, field: str) -> None:
    async with control_plane(tmp_path) as plane:
        failure = await failure_of(plane.channel.unary_unary("/pomona.v1.ModelService/LoadModel")(body, timeout=10))
    assert (failure.reason, failure.metadata["field"]) == ("UNSUPPORTED_OPTION", field)


async def test_a_request_larger_than_any_that_could_be_meant_is_refused_unread(tmp_path: Path) -> None:
    known = b"\x0a" + b"\x80\x80\x04" + b"a" * MAX_CONTROL_BYTES
    unknown = b"\xf8\x07\x01" * (MAX_CONTROL_BYTES // 3 + 1)
    async with control_plane(tmp_path) as plane:
        for method in ("pomona.v1.ModelService/GetModel", "grpc.health.v1.Health/Check"):
            for body in (known, unknown):
                failure = await failure_of(plane.channel.unary_unary(f"/{method}")(body, timeout=10))
                assert (failure.code, failure.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_REQUEST")
                assert str(MAX_CONTROL_BYTES) in failure.message


async def test_many_unknown_fields_are_refused_at_the_first_in_little_time_and_memory(tmp_path: Path) -> None:
    body = b"\x0a\x07model-a" + b"\xf8\x07\x01" * 21_000
    request = model_pb2.LoadModelRequest.FromString(body)
    tracemalloc.start()
    try:
        with pytest.raises(UnsupportedOption) as caught:
            refuse_unknown(request, body)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.violations[0].field == "127"
    assert most < 100_000


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"\x0a\x01m\x0d\x00\x00\x00\x00", "1"),  # a known number with another wire type
        (b"\xfb\x07\xfc\x07", "127"),  # a group
        (b"\x12\x05\x08\x01\xf8\x07\x01", "options.127"),
        (b"\x12\x02\x08\x01\x12\x03\xf8\x07\x01", "options.127"),  # the second part of one message
    ],
)
def test_what_is_unknown_is_found_by_its_bytes(body: bytes, field: str) -> None:
    with pytest.raises(UnsupportedOption) as caught:
        refuse_unknown(model_pb2.LoadModelRequest.FromString(body), body)
    assert caught.value.violations[0].field == field


async def test_bytes_that_are_no_request_are_malformed(tmp_path: Path) -> None:
    async with control_plane(tmp_path) as plane:
        failure = await failure_of(plane.channel.unary_unary("/pomona.v1.ModelService/GetModel")(b"\xff", timeout=10))
    assert (failure.code, failure.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_REQUEST")


async def test_what_should_not_happen_is_an_incident_without_its_words(tmp_path: Path) -> None:
    async with control_plane(tmp_path) as plane:

        async def breaks(*_: Any, **__: Any) -> None:
            raise RuntimeError("/secret/place")

        plane.pool.unload = breaks  # type: ignore[method-assign,assignment]
        failure = await failure_of(plane.models.UnloadModel(model_pb2.UnloadModelRequest(model="model-a"), timeout=10))
        assert (failure.code, failure.reason) == (grpc.StatusCode.INTERNAL, "INTERNAL_ERROR")
        assert "secret" not in failure.message
        assert plane.ring.past(1)[0].fields["incident"] == failure.metadata["incident"]


async def test_a_watcher_that_goes_away_leaves_nothing_running(tmp_path: Path) -> None:
    before = len(asyncio.all_tasks())
    async with control_plane(tmp_path) as plane:
        call = plane.models.WatchModels(model_pb2.WatchModelsRequest(), timeout=10)
        await anext(aiter(call))
        call.cancel()
    await eventually(lambda: len(asyncio.all_tasks()) == before)
