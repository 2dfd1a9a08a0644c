"""AdminService and ServerService over their wire."""

import asyncio
import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from pomona.v1 import model_pb2, server_pb2

from gateway.caller_errors import ModelForbidden
from gateway.logs import LogLine
from gateway.memory import machine_memory
from gateway.model_status import MemoryStatus, ModelState, ModelStatus, PressureLevel, WorkerFacts
from gateway.principal import ADMIN, Principal, acting_for
from gateway.requests import Request, RequestKey, Requests
from gateway.services.admin import DEFAULT_PAST_LINES, AdminService
from tests.gateway.control_plane import ControlPlane, control_plane
from tests.gateway.statuses import failure_of
from tests.support.scripted_worker import ScriptedPool, ScriptedWorker
from tests.support.waiting import eventually

LIST_WORKER_REQUESTS = "/pomona.v1.WorkerService/ListWorkerRequests"


def in_flight(plane: ControlPlane, request_id: str, model: str = "model-a") -> Request:
    task = asyncio.current_task()
    assert task is not None
    request = Request(RequestKey("", request_id), model, "/pomona.v1.GenerationService/Generate", task)
    requests_of(plane).add(request)
    return request


def requests_of(plane: ControlPlane) -> Requests:
    parts: Any = plane.parts
    return parts.requests


def line(number: int, model: str = "") -> LogLine:
    return LogLine(100.0 + number, "info", f"line {number}", model, fields={"n": str(number)})


async def test_requests_are_listed_by_age(tmp_path: Path) -> None:
    async with control_plane(tmp_path) as plane:
        for number, model in enumerate(("model-a", "model-b")):
            in_flight(plane, f"r{number}", model).start_time_s = 10.0 - number
        answer = await plane.admin.ListRequests(server_pb2.ListRequestsRequest(), timeout=10)
        named = await plane.admin.ListRequests(server_pb2.ListRequestsRequest(model="alias-a"), timeout=10)
    assert [(one.request_id, one.model) for one in answer.requests] == [("r1", "model-b"), ("r0", "model-a")]
    assert answer.requests[0].method == "pomona.v1.GenerationService/Generate"
    assert answer.requests[0].state == server_pb2.RequestInfo.STATE_QUEUED
    assert [one.request_id for one in named.requests] == ["r0"]


async def test_what_only_the_worker_knows_is_added(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []

    async def known(body: bytes, context: Any) -> bytes:
        asked.append(dict(context.invocation_metadata()))
        info = server_pb2.RequestInfo(
            request_id="r", prompt_tokens=7, completion_tokens=3, state=server_pb2.RequestInfo.STATE_DECODING
        )
        return server_pb2.ListRequestsResponse(requests=[info]).SerializeToString()

    worker = ScriptedWorker(tmp_path, {LIST_WORKER_REQUESTS: known})
    await worker.start()
    try:
        async with control_plane(tmp_path) as plane:
            in_flight(plane, "r").called(worker.instance, lambda: None)
            (info,) = (await plane.admin.ListRequests(server_pb2.ListRequestsRequest(), timeout=10)).requests
    finally:
        await worker.stop()
    assert (info.prompt_tokens, info.completion_tokens) == (7, 3)
    assert info.state == server_pb2.RequestInfo.STATE_DECODING
    assert asked[0]["x-pomona-secret"] == "secret"


async def test_a_worker_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    worker = ScriptedWorker(tmp_path, {})
    await worker.start()
    try:
        async with control_plane(tmp_path) as plane:
            in_flight(plane, "r").called(worker.instance, lambda: None)
            answer = await plane.admin.ListRequests(server_pb2.ListRequestsRequest(), timeout=10)
    finally:
        await worker.stop()
    assert [one.request_id for one in answer.requests] == ["r"]


async def test_a_worker_whose_channel_is_closed_is_not_asked(tmp_path: Path) -> None:
    worker = ScriptedWorker(tmp_path, {})
    await worker.start()
    await worker.stop()
    async with control_plane(tmp_path) as plane:
        in_flight(plane, "r").called(worker.instance, lambda: None)
        answer = await plane.admin.ListRequests(server_pb2.ListRequestsRequest(), timeout=10)
    assert [one.request_id for one in answer.requests] == ["r"]


async def test_a_worker_whose_channel_closes_while_it_is_asked_is_not_waited_for(tmp_path: Path) -> None:
    asked = asyncio.Event()

    async def silent(body: bytes, context: Any) -> bytes:
        asked.set()
        await asyncio.Event().wait()
        return b""

    worker = ScriptedWorker(tmp_path, {LIST_WORKER_REQUESTS: silent})
    await worker.start()
    try:
        async with control_plane(tmp_path) as plane:
            in_flight(plane, "r").called(worker.instance, lambda: None)
            listing = plane.admin.ListRequests(server_pb2.ListRequestsRequest(), timeout=10)
            await asyncio.wait_for(asked.wait(), 10)
            await worker.instance.channel.close(None)
            assert [one.request_id for one in (await listing).requests] == ["r"]
    finally:
        await worker.stop()


async def test_a_request_is_cancelled_by_its_id(tmp_path: Path) -> None:
    async with control_plane(tmp_path) as plane:
        cancelled: list[int] = []
        request = in_flight(plane, "r")
        request.called(None, lambda: cancelled.append(1))  # type: ignore[arg-type]
        answer = await plane.admin.CancelRequest(server_pb2.CancelRequestRequest(request_id="r"), timeout=10)
        listed = await plane.admin.ListRequests(server_pb2.ListRequestsRequest(), timeout=10)
    assert (answer.outcome, cancelled) == (server_pb2.CancelRequestResponse.OUTCOME_CANCELLED, [1])
    assert listed.requests[0].state == server_pb2.RequestInfo.STATE_CANCELLING


async def test_cancelling_what_is_finished_is_no_failure(tmp_path: Path) -> None:
    async with control_plane(tmp_path) as plane:
        answer = await plane.admin.CancelRequest(server_pb2.CancelRequestRequest(request_id="gone"), timeout=10)
    assert answer.outcome == server_pb2.CancelRequestResponse.OUTCOME_ALREADY_FINISHED


async def test_cancelling_nothing_is_an_invalid_field(tmp_path: Path) -> None:
    async with control_plane(tmp_path) as plane:
        failure = await failure_of(plane.admin.CancelRequest(server_pb2.CancelRequestRequest(), timeout=10))
    assert (failure.reason, failure.metadata["field"]) == ("INVALID_FIELD", "request_id")


@pytest.mark.parametrize(("grace", "grace_s"), [(None, 30.0), (Duration(seconds=3), 3.0)])
async def test_a_drain_says_how_it_ended(tmp_path: Path, grace: Duration | None, grace_s: float) -> None:
    async with control_plane(tmp_path) as plane:
        answer = await plane.admin.DrainServer(server_pb2.DrainServerRequest(grace=grace), timeout=10)
        assert plane.drains == [grace_s]
    assert (answer.completed_requests, answer.aborted_requests) == (2, 1)


async def test_the_last_lines_come_oldest_first(tmp_path: Path) -> None:
    async with control_plane(tmp_path) as plane:
        for number in range(5):
            plane.ring.add(line(number))
        call = plane.admin.StreamLogs(server_pb2.StreamLogsRequest(past_lines=2), timeout=10)
        got = [one async for one in call]
    assert [one.message for one in got] == ["line 3", "line 4"]
    assert (got[0].time.ToMilliseconds(), got[0].level, dict(got[0].fields)) == (103_000, "info", {"n": "3"})


async def test_a_hundred_lines_come_where_the_caller_does_not_say(tmp_path: Path) -> None:
    async with control_plane(tmp_path) as plane:
        for number in range(DEFAULT_PAST_LINES + 5):
            plane.ring.add(line(number))
        call = plane.admin.StreamLogs(server_pb2.StreamLogsRequest(), timeout=10)
        assert len([one async for one in call]) == DEFAULT_PAST_LINES


async def test_new_lines_follow_until_the_caller_goes(tmp_path: Path) -> None:
    async with control_plane(tmp_path) as plane:
        plane.ring.add(line(0, "model-a"))
        request = server_pb2.StreamLogsRequest(model="alias-a", follow=True)
        call = plane.admin.StreamLogs(request, timeout=10)
        lines = aiter(call)
        assert (await anext(lines)).message == "line 0"
        plane.ring.add(line(1, "model-b"))
        plane.ring.add(line(2, "model-a"))
        assert (await anext(lines)).message == "line 2"
        call.cancel()
        await eventually(lambda: not plane.ring._followers)


async def test_no_more_than_a_thousand_past_lines_are_given(tmp_path: Path) -> None:
    async with control_plane(tmp_path) as plane:
        failure = await failure_of(plane.admin.StreamLogs(server_pb2.StreamLogsRequest(past_lines=1001), timeout=10))
    assert (failure.reason, failure.metadata["field"]) == ("INVALID_FIELD", "past_lines")


@pytest.mark.parametrize(
    ("logger", "told"), [("", ""), ("gateway", "gateway"), ("alias-a", "model-a"), ("org/model-c", "org/model-c")]
)
async def test_the_log_level_is_changed_for_all_or_for_one(tmp_path: Path, logger: str, told: str) -> None:
    async with control_plane(tmp_path) as plane:
        await plane.admin.SetLogLevel(server_pb2.SetLogLevelRequest(logger=logger, level="debug"), timeout=10)
    assert plane.levels == [(told, "debug")]


@pytest.mark.parametrize(
    ("logger", "level", "reason"),
    [("", "loud", "INVALID_FIELD"), ("", "", "INVALID_FIELD"), ("x", "info", "MODEL_NOT_FOUND")],
)
async def test_a_log_level_that_cannot_be_is_refused(tmp_path: Path, logger: str, level: str, reason: str) -> None:
    async with control_plane(tmp_path) as plane:
        call = plane.admin.SetLogLevel(server_pb2.SetLogLevelRequest(logger=logger, level=level), timeout=10)
        assert (await failure_of(call)).reason == reason
    assert plane.levels == []


async def test_the_server_says_what_it_is(tmp_path: Path) -> None:
    facts = model_pb2.Model(runtime=model_pb2.ModelRuntime(device="cpu"))
    pool = ScriptedPool(statuses={"model-b": ModelStatus("model-b", ModelState.ACTIVE, facts=facts)})
    async with control_plane(tmp_path, pool) as plane:
        info = await plane.server.GetServerInfo(server_pb2.GetServerInfoRequest(), timeout=10)
    assert (info.schema_revision, info.minimum_client_revision, info.instance_id) == (1, 1, "i1")
    assert (info.start_time.ToMilliseconds(), info.max_request_bytes, info.device) == (1500, 1000, "cpu")
    assert info.memory_total_bytes == machine_memory().total_bytes > 2**28
    assert info.memory_budget_bytes == 3000


async def test_stats_are_those_of_the_last_heartbeats(tmp_path: Path) -> None:
    stats = server_pb2.ModelStats(running_requests=3, decode_tokens_per_second=64.5, used_cache_tokens=640)
    statuses = {
        name: ModelStatus(name, ModelState.ACTIVE, worker=WorkerFacts("i1", 42, 1.0, 2), stats=stats)
        for name in ("model-a", "model-b")
    }
    async with control_plane(tmp_path, ScriptedPool(statuses=statuses)) as plane:
        every = await plane.server.GetStats(server_pb2.GetStatsRequest(), timeout=10)
        one = await plane.server.GetStats(server_pb2.GetStatsRequest(models=["alias-a"]), timeout=10)
        none = await plane.server.GetStats(server_pb2.GetStatsRequest(models=["org/model-c"]), timeout=10)
        failure = await failure_of(plane.server.GetStats(server_pb2.GetStatsRequest(models=["x"]), timeout=10))
    assert [each.model for each in every.models] == ["model-a", "model-b"]
    (told,) = one.models
    assert (told.model, told.running_requests, told.restarts_total) == ("model-a", 3, 2)
    assert (told.decode_tokens_per_second, told.used_cache_tokens) == (64.5, 640)
    assert (list(none.models), failure.reason) == ([], "MODEL_NOT_FOUND")
    assert not stats.restarts_total


async def test_stats_count_the_requests_that_ended_by_model_and_status(tmp_path: Path) -> None:
    worker = WorkerFacts("i1", 42, 1.0, 2)
    status = ModelStatus("model-a", ModelState.ACTIVE, worker=worker, stats=server_pb2.ModelStats())
    async with control_plane(tmp_path, ScriptedPool(statuses={"model-a": status})) as plane:
        for model, name in (("model-a", "OK"), ("model-a", "CANCELLED"), ("model-b", "OK"), ("model-a", "OK")):
            requests_of(plane).count_end(model, name)
        response = await plane.server.GetStats(server_pb2.GetStatsRequest(models=["model-a"]), timeout=10)
    (told,) = response.models
    assert dict(told.requests_total) == {"OK": 2, "CANCELLED": 1}


async def test_stats_say_what_holds_for_the_server(tmp_path: Path) -> None:
    stats = server_pb2.ModelStats()
    stats.memory.footprint_bytes = 1 << 40
    status = ModelStatus("model-b", ModelState.ACTIVE, worker=WorkerFacts("i1", 42, 1.0, 2), stats=stats)
    async with control_plane(tmp_path, ScriptedPool(statuses={"model-b": status})) as plane:
        in_flight(plane, "r1")
        began_s = time.time()
        response = await plane.server.GetStats(server_pb2.GetStatsRequest(models=["model-a"]), timeout=10)
    assert began_s - 1 < response.server.time.ToMilliseconds() / 1000 < began_s + 60
    assert response.server.open_streams == 1
    assert response.server.footprint_bytes > (1 << 40) + (1 << 20)
    assert response.server.event_loop_lag_us < 10_000_000
    assert not response.models


async def test_stats_say_what_is_reserved_and_how_full_memory_is(tmp_path: Path) -> None:
    status = ModelStatus(
        "model-a",
        ModelState.ACTIVE,
        worker=WorkerFacts("i1", 42, 1.0),
        stats=server_pb2.ModelStats(),
        reserved_bytes=700,
    )
    pool = ScriptedPool(statuses={"model-a": status}, memory_status=MemoryStatus(3000, 800, PressureLevel.SOFT_LIMIT))
    async with control_plane(tmp_path, pool) as plane:
        response = await plane.server.GetStats(server_pb2.GetStatsRequest(), timeout=10)
    (told,) = response.models
    assert (told.memory.reserved_bytes, told.memory.limit_bytes) == (700, 3000)
    assert response.server.reserved_bytes == 800
    assert response.server.memory_pressure == server_pb2.MEMORY_PRESSURE_SOFT_LIMIT


async def test_watched_stats_come_at_once_and_after_each_interval(tmp_path: Path) -> None:
    status = ModelStatus(
        "model-a", ModelState.ACTIVE, worker=WorkerFacts("i1", 42, 1.0), stats=server_pb2.ModelStats(running_requests=1)
    )
    request = server_pb2.WatchStatsRequest(interval=Duration(nanos=100_000_000), models=["alias-a"])
    async with control_plane(tmp_path, ScriptedPool(statuses={"model-a": status})) as plane:
        call: Any = plane.server.WatchStats(request, timeout=10)
        first = await call.read()
        plane.pool.set(dataclasses.replace(status, stats=server_pb2.ModelStats(running_requests=2)))
        second = await call.read()
        call.cancel()
    assert [one.models[0].running_requests for one in (first, second)] == [1, 2]
    between_ms = second.server.time.ToMilliseconds() - first.server.time.ToMilliseconds()
    assert between_ms >= 95


async def test_a_reader_that_is_slow_gets_moments_and_no_backlog(tmp_path: Path) -> None:
    asked, last_s = 0, time.monotonic()
    stats = server_pb2.ModelStats(model="x" * 100_000)
    worker = WorkerFacts("i1", 42, 1.0)

    class Counted(ScriptedPool):
        def state(self, model: str) -> ModelStatus:
            nonlocal asked, last_s
            asked, last_s = asked + 1, time.monotonic()
            return ModelStatus("y" * 1_000_000, ModelState.ACTIVE, worker=worker, stats=stats)

    request = server_pb2.WatchStatsRequest(interval=Duration(nanos=100_000_000), models=["model-a"])
    async with control_plane(tmp_path, Counted()) as plane:
        call: Any = plane.server.WatchStats(request, timeout=10)
        await call.read()
        await eventually(lambda: asked > 4)
        await eventually(lambda: time.monotonic() - last_s > 0.3)  # it stands still once nothing more is taken
        call.cancel()
    assert asked < 60


@pytest.mark.parametrize("nanos", [0, 99_000_000, -1])
async def test_an_interval_out_of_range_is_refused(tmp_path: Path, nanos: int) -> None:
    async with control_plane(tmp_path) as plane:
        request = server_pb2.WatchStatsRequest(interval=Duration(nanos=nanos))
        failure = await failure_of(plane.server.WatchStats(request, timeout=10))
    assert (failure.reason, failure.metadata["field"]) == ("INVALID_FIELD", "interval")


@pytest.mark.parametrize("logger", ["model-b", "not-there"])
async def test_an_administrator_of_some_models_learns_of_no_others(tmp_path: Path, logger: str) -> None:
    async with control_plane(tmp_path) as plane:
        parts: Any = plane.parts
        told: list[Any] = [parts.catalogue, *[None] * 6]
        request = server_pb2.SetLogLevelRequest(logger=logger, level="debug")
        with acting_for(Principal("some", "some", frozenset({ADMIN}), ("model-a",))), pytest.raises(ModelForbidden):
            await AdminService(*told).SetLogLevel(request)
