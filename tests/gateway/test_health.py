"""Health of the server, of services and of models."""

import asyncio
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2

from gateway.catalogue import Catalogue
from gateway.health import LIST_RESPONSE, Health
from gateway.model_status import ModelState, ModelStatus
from tests.gateway.control_plane import MODELS, SERVICES, control_plane
from tests.gateway.statuses import failure_of
from tests.support.scripted_worker import ScriptedPool, no_description

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


def named(name: str) -> health_pb2.HealthCheckRequest:
    return health_pb2.HealthCheckRequest(service=name)


@pytest.mark.parametrize("name", ["", *SERVICES, "model-a", "alias-a", "org/model-c"])
async def test_the_server_its_services_and_its_models_serve(tmp_path: Path, name: str) -> None:
    async with control_plane(tmp_path) as plane:
        assert (await plane.health.Check(named(name), timeout=10)).status == SERVING


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (ModelState.UNLOADED, SERVING),
        (ModelState.LOADING, SERVING),
        (ModelState.ACTIVE, SERVING),
        (ModelState.DRAINING, NOT_SERVING),
        (ModelState.UNLOADING, NOT_SERVING),
        (ModelState.BACKING_OFF, NOT_SERVING),
        (ModelState.FAILED, NOT_SERVING),
    ],
)
async def test_the_health_of_a_model_is_that_of_its_state(tmp_path: Path, state: ModelState, status: int) -> None:
    pool = ScriptedPool(statuses={"model-a": ModelStatus("model-a", state)})
    async with control_plane(tmp_path, pool) as plane:
        assert (await plane.health.Check(named("model-a"), timeout=10)).status == status
        assert (await plane.health.Check(named(""), timeout=10)).status == SERVING


async def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    async with control_plane(tmp_path) as plane:
        failure = await failure_of(plane.health.Check(named("nobody"), timeout=10))
    assert failure.code is grpc.StatusCode.NOT_FOUND


async def test_everything_is_listed(tmp_path: Path) -> None:
    async with control_plane(tmp_path) as plane:
        call = plane.channel.unary_unary("/grpc.health.v1.Health/List")
        listed = LIST_RESPONSE.FromString(await call(b"", timeout=10))
    assert set(listed.statuses) == {"", *SERVICES, *(model.name for model in MODELS)}
    assert {one.status for one in listed.statuses.values()} == {SERVING}


async def test_a_watcher_sees_each_change_and_the_drain(tmp_path: Path) -> None:
    async with control_plane(tmp_path) as plane:
        follower = asyncio.create_task(plane.health_service.follow())
        call = plane.health.Watch(named("model-a"), timeout=10)
        seen = aiter(call)
        assert (await anext(seen)).status == SERVING
        plane.pool.set(ModelStatus("model-a", ModelState.FAILED))
        assert (await anext(seen)).status == NOT_SERVING
        plane.pool.set(ModelStatus("model-a", ModelState.ACTIVE))
        assert (await anext(seen)).status == SERVING
        plane.health_service.drain()
        assert (await anext(seen)).status == NOT_SERVING
        call.cancel()
        follower.cancel()


async def test_a_watcher_of_nothing_is_told_that_it_is_unknown(tmp_path: Path) -> None:
    async with control_plane(tmp_path) as plane:
        call = plane.health.Watch(named("nobody"), timeout=10)
        assert (await anext(aiter(call))).status == UNKNOWN
        call.cancel()


async def test_a_server_that_drains_serves_nothing(tmp_path: Path) -> None:
    async with control_plane(tmp_path) as plane:
        plane.health_service.drain()
        for name in ("", *SERVICES, "model-a"):
            assert (await plane.health.Check(named(name), timeout=10)).status == NOT_SERVING


async def test_who_looks_at_health_is_known_while_a_watch_is_open_and_for_a_minute_after_a_check() -> None:
    now_s = 1000.0
    subject = Health(SERVICES, Catalogue(MODELS, no_description), ScriptedPool(), lambda: now_s)
    assert not subject.is_watched
    await subject.Check(named(""))
    now_s += 59.0
    assert subject.is_watched
    now_s += 2.0
    assert not subject.is_watched
    watch = subject.Watch(named(""))
    await anext(watch)
    assert subject.is_watched
    await watch.aclose()  # pyright: ignore[reportAttributeAccessIssue]
    assert not subject.is_watched
    await subject.List(None)
    assert subject.is_watched
