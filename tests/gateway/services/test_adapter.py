"""AdapterService over its wire: what the worker is asked, what is kept for later ones, and what needs no worker."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from pomona.v1 import model_pb2, model_pb2_grpc

from gateway.catalogue import Catalogue, CatalogueModel
from gateway.desired_adapters import DesiredAdapter, DesiredAdapters
from gateway.errors import AdapterNotFound
from gateway.logs import LogRing
from gateway.model_status import Exit, ExitCause, ModelState, ModelStatus
from gateway.services.adapter import AdapterService
from gateway.services.registration import add_service
from gateway.status import status_of
from tests.gateway.statuses import failure_of
from tests.support.scripted_worker import MODEL, ScriptedPool, ScriptedWorker, no_description, relay_parts
from tests.support.waiting import eventually

SERVICE = "/pomona.v1.AdapterService/"
ACTIVE, AVAILABLE, LOADING, FAILED = (
    model_pb2.ADAPTER_STATE_ACTIVE,
    model_pb2.ADAPTER_STATE_AVAILABLE,
    model_pb2.ADAPTER_STATE_LOADING,
    model_pb2.ADAPTER_STATE_FAILED,
)


@dataclass
class Stage:
    """The service, a worker behind it, and what that worker was asked."""

    stub: Any
    pool: ScriptedPool
    worker: ScriptedWorker
    model: CatalogueModel
    desired: DesiredAdapters
    parts: Any
    answers: dict[str, Any]
    asked: list[tuple[Any, dict[str, Any], float]] = field(default_factory=list)
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)

    def wanted(self) -> list[DesiredAdapter]:
        return list(self.desired.of(self.model).values())

    def has(self, state: ModelState) -> None:
        self.pool.set(ModelStatus(MODEL, state))

    async def load(self, adapter: str, timeout_s: float = 10, **fields: Any) -> model_pb2.LoadAdapterResponse:
        given: dict[str, Any] = {"model": "alias-a", "adapter": adapter, **fields}
        return await self.stub.LoadAdapter(model_pb2.LoadAdapterRequest(**given), timeout=timeout_s)

    async def unload(self, adapter: str, timeout_s: float | None = 10) -> model_pb2.UnloadAdapterResponse:
        asked = model_pb2.UnloadAdapterRequest(model="alias-a", adapter=adapter)
        return await self.stub.UnloadAdapter(asked, timeout=timeout_s)

    async def list(self, **fields: Any) -> model_pb2.ListAdaptersResponse:
        given: dict[str, Any] = {"model": "alias-a", **fields}
        return await self.stub.ListAdapters(model_pb2.ListAdaptersRequest(**given), timeout=10)


def method(stage: Stage, kind: Any, response: Any) -> Any:
    """Return a worker's method that notes what it is asked, and answers once it may."""

    async def answer(body: bytes, context: Any) -> bytes:
        metadata = dict(context.invocation_metadata())
        stage.asked.append((kind.FromString(body), metadata, context.time_remaining()))
        await stage.may_answer.wait()
        return response.SerializeToString()

    return answer


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncGenerator[Stage]:
    for name in ("a", "b", "org/c"):
        (tmp_path / "store" / name).mkdir(parents=True)
        (tmp_path / "store" / name / "adapters.safetensors").touch()
    adapters = (DesiredAdapter("first", "b", pinned=True),)
    model = CatalogueModel(MODEL, Path(__file__), ("alias-a",), adapters_folder=tmp_path / "store", adapters=adapters)
    answers: dict[str, Any] = {}
    worker = ScriptedWorker(tmp_path, answers)
    pool, desired = ScriptedPool([worker]), DesiredAdapters()
    parts = relay_parts(pool, LogRing(100))
    service = AdapterService(Catalogue([model], no_description), pool, parts.admission, desired)
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    add_service(server, model_pb2.DESCRIPTOR.services_by_name["AdapterService"], service, parts.log, is_timed=True)
    address = f"unix:{tmp_path / 'g.sock'}"
    server.add_insecure_port(address)
    await server.start()
    await worker.start()
    channel = grpc.aio.insecure_channel(address, options=(("grpc.default_authority", "localhost"),))
    made = Stage(model_pb2_grpc.AdapterServiceStub(channel), pool, worker, model, desired, parts, answers)
    made.may_answer.set()
    told = model_pb2.Adapter(adapter="x", model=MODEL, revision="r1", pinned=True, state=ACTIVE)
    for name, kind, response in (
        ("ListAdapters", model_pb2.ListAdaptersRequest, model_pb2.ListAdaptersResponse(adapters=[told])),
        ("LoadAdapter", model_pb2.LoadAdapterRequest, model_pb2.LoadAdapterResponse(adapter=told)),
        ("UnloadAdapter", model_pb2.UnloadAdapterRequest, model_pb2.UnloadAdapterResponse(freed_bytes=7)),
    ):
        answers[f"{SERVICE}{name}"] = method(made, kind, response)
    yield made
    made.may_answer.set()
    await channel.close(None)
    await server.stop(None)
    await worker.stop()


async def refuses(_body: bytes, context: Any) -> bytes:
    """End a worker's method as its own refusals end."""
    details = status_of(AdapterNotFound("x", ("a",))).trailers
    await context.abort(grpc.StatusCode.NOT_FOUND, "the worker says so", (*details, ("x-pomona-private", "1")))
    return b""


async def test_a_loaded_models_worker_is_asked_by_canonical_name(stage: Stage) -> None:
    stage.has(ModelState.ACTIVE)
    assert [one.adapter for one in (await stage.list(page_size=3, page_token="k")).adapters] == ["x"]
    ((asked, metadata, limit_s),) = stage.asked
    assert (asked.model, asked.page_size, asked.page_token) == (MODEL, 3, "k")
    assert metadata["x-pomona-secret"] == "secret"
    assert limit_s < 11, "the wire carries it rounded up"
    await eventually(lambda: stage.pool.holds == 0)  # the answer may be here before its end is through


async def test_a_model_that_is_not_loaded_lists_its_folder_and_what_is_wanted(stage: Stage) -> None:
    stage.desired.load(MODEL, DesiredAdapter("a", revision="r7"))
    stage.desired.load(MODEL, DesiredAdapter("lost", "gone"))
    first = await stage.list(page_size=3)
    rest = await stage.list(page_token=first.next_page_token)
    found = {one.adapter: one for one in (*first.adapters, *rest.adapters)}
    assert list(found) == ["a", "b", "first", "lost", "org/c"]
    assert (found["a"].revision, found["a"].state, found["first"].pinned) == ("r7", AVAILABLE, True)
    assert (found["lost"].state, found["lost"].failure.reason) == (FAILED, "ADAPTER_NOT_FOUND")
    assert (rest.next_page_token, stage.pool.acquired) == ("", 0)
    stage.has(ModelState.LOADING)
    states = {one.adapter: one.state for one in (await stage.list()).adapters}
    assert (states["a"], states["b"], states["first"]) == (LOADING, AVAILABLE, LOADING)


async def test_what_was_loaded_is_wanted_with_its_revision(stage: Stage) -> None:
    stage.has(ModelState.ACTIVE)
    assert (await stage.load("x", source="a")).adapter.revision == "r1"
    assert stage.wanted() == [
        DesiredAdapter("first", "b", pinned=True),
        DesiredAdapter("x", "a", pinned=True, revision="r1"),
    ]


async def test_a_caller_that_goes_away_does_not_end_a_load(stage: Stage) -> None:
    stage.has(ModelState.ACTIVE)
    stage.may_answer.clear()
    assert (await failure_of(stage.load("x", timeout_s=0.3))).code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert len(stage.wanted()) == 1
    stage.may_answer.set()
    await eventually(lambda: len(stage.wanted()) == 2)
    await eventually(lambda: stage.pool.holds == 0)


async def test_what_a_worker_refuses_is_not_wanted_and_the_caller_gets_its_words(stage: Stage) -> None:
    stage.has(ModelState.ACTIVE)
    stage.answers[f"{SERVICE}LoadAdapter"] = refuses
    failure = await failure_of(stage.load("x"))
    assert (failure.code, failure.message) == (grpc.StatusCode.NOT_FOUND, "the worker says so")
    assert (failure.reason, failure.metadata["available"]) == ("ADAPTER_NOT_FOUND", "a")
    assert "x-pomona-private" not in failure.trailers
    assert len(stage.wanted()) == 1


async def test_what_has_gone_for_others_can_be_unloaded_once_where_it_is_wanted(stage: Stage) -> None:
    stage.has(ModelState.ACTIVE)
    stage.answers[f"{SERVICE}UnloadAdapter"] = refuses
    assert (await stage.unload("first")).adapter.state == AVAILABLE
    assert stage.wanted() == []
    assert (await failure_of(stage.unload("first"))).message == "the worker says so"


async def test_a_worker_that_dies_meanwhile_is_told_and_nothing_changes(stage: Stage) -> None:
    stage.has(ModelState.ACTIVE)
    stage.may_answer.clear()
    call = asyncio.ensure_future(failure_of(stage.unload("first")))
    await eventually(lambda: len(stage.asked) == 1)
    await stage.worker.die(Exit(ExitCause.DIED, signal=9))
    assert (await call).reason == "WORKER_DIED"
    assert len(stage.wanted()) == 1


async def test_a_worker_that_is_given_up_ends_the_call(stage: Stage) -> None:
    stage.has(ModelState.ACTIVE)
    stage.may_answer.clear()
    call = asyncio.ensure_future(failure_of(stage.load("x")))
    await eventually(lambda: len(stage.asked) == 1)
    stage.worker.give_up(Exit(ExitCause.STALLED))
    assert (await call).reason == "WORKER_STALLED"
    await eventually(lambda: stage.pool.holds == 0)


@pytest.mark.parametrize(("timeout_s", "least", "most"), [(8.0, 7.0, 8.0), (None, 29.0, 30.5)])
async def test_an_unloading_has_the_callers_time(
    stage: Stage, timeout_s: float | None, least: float, most: float
) -> None:
    stage.has(ModelState.ACTIVE)
    assert (await stage.unload("first", timeout_s)).freed_bytes == 7
    ((_, _, limit_s),) = stage.asked
    assert least < limit_s <= most
    assert stage.wanted() == []


@pytest.mark.parametrize("state", [ModelState.UNLOADED, ModelState.BACKING_OFF, ModelState.DRAINING])
async def test_without_a_worker_an_adapter_is_just_not_wanted_any_more(stage: Stage, state: ModelState) -> None:
    stage.has(state)
    assert (await stage.unload("first")).adapter.state == AVAILABLE
    assert (stage.wanted(), stage.pool.acquired) == ([], 0)
    failure = await failure_of(stage.unload("first"))
    assert (failure.code, failure.reason) == (grpc.StatusCode.NOT_FOUND, "ADAPTER_NOT_FOUND")


async def test_what_cannot_be_is_refused_before_a_model_is_loaded_for_it(stage: Stage) -> None:
    for call, reason in (
        (stage.load("nowhere"), "ADAPTER_NOT_FOUND"),
        (stage.load("x", source="/etc"), "INVALID_FIELD"),
        (stage.load("../a"), "INVALID_FIELD"),
        (stage.load("a", model="other"), "MODEL_NOT_FOUND"),
        (stage.list(model=""), "MALFORMED_REQUEST"),
        (stage.list(page_size=-1), "INVALID_FIELD"),
        (stage.list(page_token="../"), "INVALID_FIELD"),
    ):
        assert (await failure_of(call)).reason == reason
    stage.parts.admission.close()
    assert (await failure_of(stage.load("a"))).reason == "SERVER_DRAINING"
    assert stage.pool.acquired == 0
