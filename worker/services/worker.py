"""The WorkerService: what the gateway alone asks, from the handshake to the end."""

import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from pomona.v1 import model_pb2, server_pb2, worker_pb2

from models.registry import LoadProgress
from worker import logs, wire
from worker.errors import CancelledByOperator, InvalidField
from worker.footprint import FootprintGauge
from worker.job import RequestView
from worker.services.desk import Desk
from worker.services.edge import Call, Edge
from worker.services.requests import OpenRequest
from worker.services.stats import stats_message
from worker.status import State, Status

SERVICE = "pomona.v1.WorkerService"
SCHEMA_REVISION = 1
MIN_INTERVAL_S, DEFAULT_INTERVAL_S, MAX_INTERVAL_S = 0.1, 1.0, 60.0
# How often a load is looked at, and so the most often that its progress is told.
LOADING_INTERVAL_S = 0.1
MAX_GRACE_S = 3600.0

MODEL_STATES = {
    State.LOADING: model_pb2.MODEL_STATE_LOADING,
    State.ACTIVE: model_pb2.MODEL_STATE_ACTIVE,
    State.DRAINING: model_pb2.MODEL_STATE_DRAINING,
    State.ENDED: model_pb2.MODEL_STATE_UNLOADING,
    State.FAILED: model_pb2.MODEL_STATE_FAILED,
}
REQUEST_STATES = {
    "queued": server_pb2.RequestInfo.STATE_QUEUED,
    "prefilling": server_pb2.RequestInfo.STATE_PREFILL,
    "decoding": server_pb2.RequestInfo.STATE_DECODING,
    "paused": server_pb2.RequestInfo.STATE_DECODING,
    "ended": server_pb2.RequestInfo.STATE_CANCELLING,
}


@dataclass(frozen=True, slots=True)
class Identity:
    """Which process this is, and for which model."""

    instance_id: str
    model: str


class WorkerService:
    """Answers the gateway's own questions; all of it on the event loop, so that a heartbeat never waits for the engine.

    Args:
        identity: of this worker.
        status: where it stands.
        desk: what runs.
        gauge: how much memory it takes.
        stop: refuses new requests, waits so many seconds for the running ones, ends the rest and returns their number.
    """

    def __init__(
        self,
        identity: Identity,
        status: Status,
        desk: Desk[Any, Any],
        gauge: FootprintGauge,
        stop: Callable[[float], Awaitable[int]],
    ) -> None:
        self._identity = identity
        self._status = status
        self._desk = desk
        self._gauge = gauge
        self._stop = stop

    def handlers(self, edge: Edge) -> grpc.GenericRpcHandler:
        """Return the methods of this service for a server."""
        methods = {
            "Handshake": edge.unary(self.handshake),
            "WatchWorker": edge.stream(self.watch_worker),
            "ListWorkerRequests": edge.unary(self.list_worker_requests),
            "CancelWorkerRequest": edge.unary(self.cancel_worker_request),
            "AnnounceEnding": edge.unary(self.announce_ending),
            "SetWorkerLogLevel": edge.unary(self.set_worker_log_level),
            "Shutdown": edge.unary(self.shutdown),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def handshake(self, body: bytes, _call: Call) -> worker_pb2.HandshakeResponse:
        """Say who answers here; the gateway compares."""
        wire.parse(body, worker_pb2.HandshakeRequest)
        model = self._status.model
        return worker_pb2.HandshakeResponse(
            instance_id=self._identity.instance_id,
            model=self._identity.model,
            revision=model.revision if model is not None else "",
            schema_revision=SCHEMA_REVISION,
            pid=os.getpid(),
            world_size=1,
        )

    async def watch_worker(self, body: bytes, call: Call) -> None:
        """Send a report at once, at each change, and each interval; the last one is that of a failure or the end."""
        request = wire.parse(body, worker_pb2.WatchWorkerRequest)
        interval_s = _interval_s(request)
        event_number, is_model_told, is_last = 0, False, False
        while not is_last:
            version, progress = self._status.version, self._desk.engine.load_progress
            is_last = self._status.state in {State.FAILED, State.ENDED}
            report = self._report()
            report.event_number = event_number
            if self._status.model is not None and not is_model_told:
                report.model.CopyFrom(self._status.model)
                is_model_told = True
            await call.send(report)
            event_number += 1
            if not is_last:
                await self._wait(version, progress, interval_s)
        self._status.note_told()

    async def list_worker_requests(self, body: bytes, _call: Call) -> worker_pb2.ListWorkerRequestsResponse:
        """List the open generations, then those that their callers left and the engine has still to drop."""
        wire.parse(body, worker_pb2.ListWorkerRequestsRequest)
        views = {view.key: view for view in self._desk.engine.requests()}
        requests = [self._info(each, views.pop(each.key or "", None)) for each in self._desk.requests.all()]
        requests += [self._left(view) for view in views.values()]
        return worker_pb2.ListWorkerRequestsResponse(requests=requests)

    async def cancel_worker_request(self, body: bytes, _call: Call) -> worker_pb2.CancelWorkerRequestResponse:
        """End the generation of an id, wherever it is."""
        request_id = wire.parse(body, worker_pb2.CancelWorkerRequestRequest).request_id
        error = CancelledByOperator(request_id)
        named = self._desk.requests.named(request_id)
        for each in named:
            if each.key is None or not self._desk.engine.cancel(each.key, error):
                each.end_unhanded(error)
        return worker_pb2.CancelWorkerRequestResponse(found=bool(named))

    async def announce_ending(self, body: bytes, _call: Call) -> worker_pb2.AnnounceEndingResponse:
        """Tell open requests that the gateway will end this worker."""
        request = wire.parse(body, worker_pb2.AnnounceEndingRequest)
        self._desk.requests.tell_ending(_grace_s(request.remaining))
        return worker_pb2.AnnounceEndingResponse()

    async def set_worker_log_level(self, body: bytes, _call: Call) -> worker_pb2.SetWorkerLogLevelResponse:
        """Change the least that is logged.

        Raises:
            InvalidField: there is no such level.
        """
        level = wire.parse(body, worker_pb2.SetWorkerLogLevelRequest).level
        if level not in logs.LEVELS:
            raise InvalidField("level", f"is none of {', '.join(logs.LEVELS)}")
        logs.set_level(level)
        return worker_pb2.SetWorkerLogLevelResponse()

    async def shutdown(self, body: bytes, _call: Call) -> worker_pb2.ShutdownResponse:
        """Stop; the process ends after this answer."""
        request = wire.parse(body, worker_pb2.ShutdownRequest)
        return worker_pb2.ShutdownResponse(aborted_requests=await self._stop(_grace_s(request.grace)))

    def _report(self) -> worker_pb2.WatchWorkerResponse:
        engine, progress = self._desk.engine, self._desk.engine.load_progress
        counts = engine.workload.counts()
        report = worker_pb2.WatchWorkerResponse(
            state=MODEL_STATES[self._status.state],
            compute_ticks_total=engine.ticks,
            steps_total=engine.steps,
            step_tokens=counts.step_tokens,
            failure=self._status.failure,
            stats=stats_message(self._identity.model, counts, self._gauge.bytes, engine.turn.stats),
        )
        if isinstance(progress, LoadProgress):
            report.load_progress.phase = progress.phase
            report.load_progress.bytes_done = progress.bytes_done
            report.load_progress.bytes_total = progress.bytes_total
        return report

    async def _wait(self, version: int, progress: object, interval_s: float) -> None:
        """Return after the interval, or when the state or the progress of the load is no longer what was told."""
        end = time.monotonic() + interval_s
        while self._status.version == version and self._desk.engine.load_progress == progress:
            left_s = end - time.monotonic()
            if left_s <= 0:
                return
            is_loading = self._status.state is State.LOADING
            await self._status.wait_for_change(version, min(left_s, LOADING_INTERVAL_S) if is_loading else left_s)

    def _info(self, request: OpenRequest, view: RequestView | None) -> server_pb2.RequestInfo:
        return server_pb2.RequestInfo(
            request_id=request.request_id,
            model=self._identity.model,
            method=request.method,
            principal=request.principal,
            start_time=_timestamp(request.start_time),
            prompt_tokens=view.usage.prompt_tokens if view is not None else 0,
            completion_tokens=view.usage.completion_tokens if view is not None else 0,
            state=REQUEST_STATES["queued" if view is None else view.state],
        )

    def _left(self, view: RequestView) -> server_pb2.RequestInfo:
        return server_pb2.RequestInfo(
            request_id=view.request_id,
            model=self._identity.model,
            prompt_tokens=view.usage.prompt_tokens,
            completion_tokens=view.usage.completion_tokens,
            state=server_pb2.RequestInfo.STATE_CANCELLING,
        )


def _interval_s(request: worker_pb2.WatchWorkerRequest) -> float:
    asked = _seconds(request.interval) if request.HasField("interval") else DEFAULT_INTERVAL_S
    return min(max(asked, MIN_INTERVAL_S), MAX_INTERVAL_S)


def _grace_s(duration: Duration) -> float:
    return min(max(_seconds(duration), 0.0), MAX_GRACE_S)


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9


def _timestamp(seconds: float) -> Timestamp:
    stamp = Timestamp()
    stamp.FromNanoseconds(round(seconds * 1e9))
    return stamp
