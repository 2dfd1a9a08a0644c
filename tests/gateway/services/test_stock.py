"""PullModel, DeleteModel and RefreshCatalogue over their wire."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2 as untyped_health_pb2
from pomona.v1 import model_pb2

from gateway.errors import CheckpointRejected, ModelFailed
from gateway.hub.cache import repository_folder
from gateway.hub.messages import Done, Order, Progress
from gateway.hub.pulled import Pulled, remember
from gateway.model_status import ModelState, ModelStatus
from gateway.pull_errors import DiskFull, HubUnreachable
from gateway.settings import Settings, load_settings
from tests.gateway.control_plane import MODELS, ControlPlane, HubSide, control_plane
from tests.gateway.hub.test_cache import FIRST, write
from tests.gateway.statuses import failure_of
from tests.support.waiting import eventually

LIMIT_S = 20.0
health_pb2: Any = untyped_health_pb2  # its stubs know no List
NAMES = [model.name for model in MODELS]
CONFIGURED = [{"name": name, "checkpoint": __file__} for name in NAMES]
SAME = [{"name": one.name, "checkpoint": str(one.checkpoint), "aliases": one.aliases} for one in MODELS]
PULL = model_pb2.PullModelRequest(repository="org/new")


class FakeHub:
    """Stands for the process of a pull: writes the model into the cache once it may."""

    def __init__(self, folder: Path) -> None:
        self.cache = folder / "hub"
        self.orders: list[Order] = []
        self.cancelled = 0
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.error: Exception | None = None

    async def run(self, order: Order, on_progress: Callable[[Progress], None]) -> Done:
        self.orders.append(order)
        on_progress(Progress("skipped", "pytorch_model.bin", 0, 7))
        on_progress(Progress("downloading", "model.safetensors", 1, 9))
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        home = write(self.cache, order.repository)
        remember(home, Pulled(order.model, FIRST, order.file))
        return Done(FIRST, str(home))


@asynccontextmanager
async def plane_of(
    folder: Path, *, refusal: str = "", reload: Callable[[], Settings] | None = None
) -> AsyncGenerator[tuple[ControlPlane, FakeHub]]:
    hub = FakeHub(folder)
    side = HubSide(hub.cache, hub.run, refusal=refusal)
    if reload is not None:
        side.reload = reload
    async with control_plane(folder, hub=side) as plane:
        yield plane, hub


async def listed(plane: ControlPlane) -> list[str]:
    answer = await plane.models.ListModels(model_pb2.ListModelsRequest(), timeout=LIMIT_S)
    return [model.model for model in answer.models]


async def pulled(plane: ControlPlane, request: Any = PULL) -> list[model_pb2.PullModelResponse]:
    return [response async for response in plane.models.PullModel(request, timeout=LIMIT_S)]


async def test_a_pull_tells_its_phases_and_ends_with_the_model(tmp_path: Path) -> None:
    async with plane_of(tmp_path) as (plane, hub):
        responses = await pulled(plane, model_pb2.PullModelRequest(repository="org/new", revision="v1", model="mine"))
        assert [response.phase for response in responses] == ["skipped", "downloading", "describing", "done"]
        assert (responses[1].file, responses[1].bytes_done, responses[1].bytes_total) == ("model.safetensors", 1, 9)
        assert (responses[-1].model.model, responses[-1].model.architecture) == ("mine", "llama")
        assert hub.orders == [Order("org/new", "v1", "mine")]
        assert await listed(plane) == ["mine", *NAMES]


async def test_watchers_and_health_see_a_model_come_and_go(tmp_path: Path) -> None:
    async with plane_of(tmp_path) as (plane, _):
        call = plane.models.WatchModels(model_pb2.WatchModelsRequest(), timeout=LIMIT_S)
        events = aiter(call)
        before = [await anext(events) for _ in range(len(NAMES) + 1)]
        await pulled(plane)
        come = await anext(events)
        assert (come.updated.model, come.event_number) == ("org/new", len(before))
        statuses = (await plane.health.List(health_pb2.HealthListRequest(), timeout=LIMIT_S)).statuses
        assert "org/new" in statuses
        answer = await plane.models.DeleteModel(model_pb2.DeleteModelRequest(model="org/new"), timeout=LIMIT_S)
        assert answer.freed_bytes > 0
        assert (await anext(events)).removed_model == "org/new"
        assert await listed(plane) == NAMES
        failure = await failure_of(plane.health.Check(health_pb2.HealthCheckRequest(service="org/new")))
        assert failure.code is grpc.StatusCode.NOT_FOUND
        call.cancel()


async def test_a_second_caller_joins(tmp_path: Path) -> None:
    async with plane_of(tmp_path) as (plane, hub):
        hub.may_end.clear()
        both = [asyncio.create_task(pulled(plane)) for _ in range(2)]
        await eventually(lambda: bool(hub.orders))
        for _ in range(3):
            await plane.models.ListModels(model_pb2.ListModelsRequest(), timeout=LIMIT_S)
        hub.may_end.set()
        first, second = await asyncio.gather(*both)
        assert first[-1] == second[-1]
        assert len(hub.orders) == 1


async def test_a_caller_that_goes_stops_the_download(tmp_path: Path) -> None:
    async with plane_of(tmp_path) as (plane, hub):
        hub.may_end.clear()
        call = plane.models.PullModel(PULL, timeout=LIMIT_S)
        await anext(aiter(call))
        call.cancel()
        await eventually(lambda: hub.cancelled == 1)
        assert await listed(plane) == NAMES


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (HubUnreachable("org/new", "no network"), grpc.StatusCode.UNAVAILABLE, "HUB_UNREACHABLE"),
        (DiskFull("org/new", 5, 3), grpc.StatusCode.FAILED_PRECONDITION, "DISK_FULL"),
    ],
)
async def test_a_pull_that_fails_says_why(tmp_path: Path, error: Exception, code: grpc.StatusCode, reason: str) -> None:
    async with plane_of(tmp_path) as (plane, hub):
        hub.error = error
        failure = await failure_of(plane.models.PullModel(PULL, timeout=LIMIT_S))
        assert (failure.code, failure.reason) == (code, reason)
        assert await listed(plane) == NAMES


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (model_pb2.PullModelRequest(), "repository"),
        (model_pb2.PullModelRequest(repository="new"), "repository"),
        (model_pb2.PullModelRequest(repository="../x"), "repository"),
        (model_pb2.PullModelRequest(repository="org/new", revision="../x"), "revision"),
        (model_pb2.PullModelRequest(repository="org/new", model="a b"), "model"),
        (model_pb2.PullModelRequest(repository="org/new", model="alias-a"), "model"),
        (model_pb2.PullModelRequest(repository="org/model-c"), "model"),
        (model_pb2.PullModelRequest(repository="org/new", file="../x.gguf"), "file"),
        (model_pb2.PullModelRequest(repository="org/new", file="x.bin"), "file"),
    ],
    ids=str,
)
async def test_an_order_that_cannot_be_is_refused_by_its_field(tmp_path: Path, request_: Any, field: str) -> None:
    async with plane_of(tmp_path) as (plane, hub):
        failure = await failure_of(plane.models.PullModel(request_, timeout=LIMIT_S))
        assert (failure.reason, failure.metadata["field"], hub.orders) == ("INVALID_FIELD", field, [])


async def test_a_server_that_may_not_pull_says_so(tmp_path: Path) -> None:
    async with plane_of(tmp_path, refusal="its setting allow_pull is off") as (plane, hub):
        calls = [
            plane.models.PullModel(PULL, timeout=LIMIT_S),
            plane.models.DeleteModel(model_pb2.DeleteModelRequest(model="model-a"), timeout=LIMIT_S),
        ]
        for call in calls:
            failure = await failure_of(call)
            assert (failure.code, failure.reason) == (grpc.StatusCode.PERMISSION_DENIED, "SCOPE_MISSING")
            assert "allow_pull" in failure.message
        assert hub.orders == []


async def test_a_server_that_drains_pulls_nothing(tmp_path: Path) -> None:
    async with plane_of(tmp_path) as (plane, _):
        plane.parts.admission.close()  # type: ignore[attr-defined]
        assert (await failure_of(plane.models.PullModel(PULL, timeout=LIMIT_S))).reason == "SERVER_DRAINING"


async def test_a_loaded_model_is_not_deleted(tmp_path: Path) -> None:
    async with plane_of(tmp_path) as (plane, hub):
        await pulled(plane)
        plane.pool.set(ModelStatus("org/new", ModelState.ACTIVE))
        request = model_pb2.DeleteModelRequest(model="org/new")
        failure = await failure_of(plane.models.DeleteModel(request, timeout=LIMIT_S))
        assert (failure.code, failure.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "MODEL_IN_USE")
        assert failure.metadata == {"model": "org/new", "use": "loaded"}
        assert repository_folder(hub.cache, "org/new").exists()
        plane.pool.set(ModelStatus("org/new"))
        await plane.models.DeleteModel(request, timeout=LIMIT_S)
        assert not repository_folder(hub.cache, "org/new").exists()


async def test_a_model_that_is_being_pulled_is_not_deleted(tmp_path: Path) -> None:
    async with plane_of(tmp_path) as (plane, hub):
        await pulled(plane)
        hub.may_end.clear()
        again = asyncio.create_task(pulled(plane))
        await eventually(lambda: len(hub.orders) == 2)
        request = model_pb2.DeleteModelRequest(model="org/new")
        failure = await failure_of(plane.models.DeleteModel(request, timeout=LIMIT_S))
        assert failure.reason == "MODEL_IN_USE"
        hub.may_end.set()
        await again


@pytest.mark.parametrize(("name", "reason"), [("model-a", "INVALID_FIELD"), ("nobody", "MODEL_NOT_FOUND")])
async def test_only_models_of_the_cache_are_deleted(tmp_path: Path, name: str, reason: str) -> None:
    async with plane_of(tmp_path) as (plane, _):
        request = model_pb2.DeleteModelRequest(model=name)
        assert (await failure_of(plane.models.DeleteModel(request, timeout=LIMIT_S))).reason == reason


async def test_files_that_cannot_be_removed_leave_the_model_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> int:
        raise PermissionError(13, "no")

    async with plane_of(tmp_path) as (plane, _):
        await pulled(plane)
        monkeypatch.setattr("gateway.services.stock.remove", fails)
        request = model_pb2.DeleteModelRequest(model="org/new")
        assert (await failure_of(plane.models.DeleteModel(request, timeout=LIMIT_S))).reason == "INTERNAL_ERROR"
        assert await listed(plane) == [*NAMES, "org/new"]


async def test_a_refresh_tells_what_changed_while_readers_go_on(tmp_path: Path) -> None:
    reading, may_end = threading.Event(), threading.Event()

    def reload() -> Settings:
        reading.set()
        may_end.wait(LIMIT_S)
        models = [{"name": "model-b", "checkpoint": __file__}, {"name": "other", "checkpoint": __file__}]
        return load_settings(None, {"models": models})

    async with plane_of(tmp_path, reload=reload) as (plane, hub):
        write(hub.cache)
        refreshing = asyncio.ensure_future(
            plane.models.RefreshCatalogue(model_pb2.RefreshCatalogueRequest(), timeout=LIMIT_S)
        )
        await eventually(reading.is_set)
        assert await listed(plane) == NAMES
        may_end.set()
        answer = await refreshing
        assert (list(answer.added), list(answer.removed)) == (["org/m", "other"], ["model-a", "org/model-c"])
        assert list(answer.changed) == ["model-b"]
        assert await listed(plane) == ["model-b", "org/m", "other"]


async def test_a_refresh_forgets_that_a_checkpoint_could_not_be_loaded_and_no_other_failure(tmp_path: Path) -> None:
    async with plane_of(tmp_path, reload=lambda: load_settings(None, {"models": SAME})) as (plane, _):
        plane.pool.set(
            ModelStatus("model-a", ModelState.FAILED, failure=CheckpointRejected("model-a", "too short.", {}))
        )
        plane.pool.set(ModelStatus("model-b", ModelState.FAILED, failure=ModelFailed("model-b", "SIGSEGV")))
        await plane.models.RefreshCatalogue(model_pb2.RefreshCatalogueRequest(), timeout=LIMIT_S)
        assert plane.pool.unloads == [("model-a", 0)]
        assert not plane.pool.forgotten


async def test_a_refresh_forgets_the_failure_of_a_model_whose_settings_changed(tmp_path: Path) -> None:
    changed = [{**one, "max_batch_rows": 3} if one["name"] == "model-b" else one for one in SAME]
    async with plane_of(tmp_path, reload=lambda: load_settings(None, {"models": changed})) as (plane, _):
        plane.pool.set(ModelStatus("model-b", ModelState.FAILED, failure=ModelFailed("model-b", "SIGSEGV")))
        await plane.models.RefreshCatalogue(model_pb2.RefreshCatalogueRequest(), timeout=LIMIT_S)
        assert plane.pool.unloads == [("model-b", 0)]


async def test_settings_that_cannot_be_read_again_are_told_without_their_words(tmp_path: Path) -> None:
    async with plane_of(tmp_path) as (plane, _):
        failure = await failure_of(plane.models.RefreshCatalogue(model_pb2.RefreshCatalogueRequest(), timeout=LIMIT_S))
        assert (failure.reason, "no file" in failure.message) == ("INVALID_FIELD", False)
        assert await listed(plane) == NAMES
