"""AdminService: the requests in flight, ending them, the log, and the drain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from pomona.v1 import server_pb2, worker_pb2
from structlog.typing import FilteringBoundLogger

from gateway.catalogue import Catalogue
from gateway.errors import CancelledByOperator
from gateway.log_levels import LEVELS
from gateway.logs import LogLine, LogRing
from gateway.model_status import Instance
from gateway.principal import caller
from gateway.request_errors import InvalidField, Violation
from gateway.requests import Request, RequestKey, Requests
from gateway.services.strict import check_range
from gateway.services.views import seconds_of, timestamp
from gateway.sight import is_seen, seen
from gateway.worker_link import ask

ASK_LIMIT_S = 0.5
DEFAULT_PAST_LINES = 100
MAX_PAST_LINES = 1000
MAX_GRACE_S = 86_400
GATEWAY = "gateway"  # the logger of the server itself

SetLevel = Callable[[str, str], Awaitable[None]]
"""Changes the level of a logger: `GATEWAY`, a model's canonical name, or empty for all."""


@dataclass(frozen=True, slots=True)
class Drained:
    """How a drain ended: requests that finished, and those that were ended."""

    completed: int
    aborted: int


@dataclass(frozen=True, slots=True)
class AdminService:
    """The methods of `pomona.v1.AdminService` that are built.

    Attributes:
        catalogue: which models there are.
        requests: what is in flight.
        ring: the log lines.
        drain: stops admission and waits; takes the grace in seconds.
        drain_grace_s: that grace where the caller does not say.
        log: takes what operators do.
        set_level: changes the least that is logged.
    """

    catalogue: Catalogue
    requests: Requests
    ring: LogRing
    drain: Callable[[float], Awaitable[Drained]]
    drain_grace_s: float
    log: FilteringBoundLogger
    set_level: SetLevel

    async def ListRequests(self, request: server_pb2.ListRequestsRequest) -> server_pb2.ListRequestsResponse:  # noqa: N802
        """Return the requests in flight; what only workers know is missing where one does not answer at once."""
        model = seen(self.catalogue, request.model).name if request.model else ""
        held = [one for one in self.requests if (not model or one.model == model) and self._is_shown(one)]
        instances = {one.instance for one in held if one.instance is not None}
        known: dict[RequestKey, server_pb2.RequestInfo] = {}
        for infos in await asyncio.gather(*(_ask(instance) for instance in instances)):
            known.update(infos)
        infos = [_info(one, known.get(one.key)) for one in held]
        return server_pb2.ListRequestsResponse(requests=sorted(infos, key=lambda info: info.start_time.ToNanoseconds()))

    async def CancelRequest(self, request: server_pb2.CancelRequestRequest) -> server_pb2.CancelRequestResponse:  # noqa: N802
        """End the requests with this id; one that has finished already is no failure."""
        if not request.request_id:
            raise InvalidField((Violation("request_id", "is empty"),))
        found = [one for one in self.requests.find(request.request_id) if self._is_shown(one)]
        for one in found:
            one.abort(CancelledByOperator(request.request_id))
        if not found:
            return server_pb2.CancelRequestResponse(outcome=server_pb2.CancelRequestResponse.OUTCOME_ALREADY_FINISHED)
        self.log.info("request cancelled by operator", request_id=request.request_id)
        return server_pb2.CancelRequestResponse(outcome=server_pb2.CancelRequestResponse.OUTCOME_CANCELLED)

    async def DrainServer(self, request: server_pb2.DrainServerRequest) -> server_pb2.DrainServerResponse:  # noqa: N802
        """Stop admission and wait for running requests; the server stays up and answers, but takes no work."""
        grace_s = seconds_of(request.grace) if request.HasField("grace") else self.drain_grace_s
        check_range("grace", grace_s, 0, MAX_GRACE_S)
        drained = await self.drain(grace_s)
        return server_pb2.DrainServerResponse(completed_requests=drained.completed, aborted_requests=drained.aborted)

    async def SetLogLevel(self, request: server_pb2.SetLogLevelRequest) -> server_pb2.SetLogLevelResponse:  # noqa: N802
        """Change the least that the server, one worker or all of them log, until the server ends."""
        if request.level not in LEVELS:
            raise InvalidField((Violation("level", f"is none of {', '.join(LEVELS)}"),))
        named = request.logger not in {"", GATEWAY}
        logger = seen(self.catalogue, request.logger).name if named else request.logger
        await self.set_level(logger, request.level)
        self.log.warning("log level changed", logger=logger or "all", to=request.level)
        return server_pb2.SetLogLevelResponse()

    async def StreamLogs(  # noqa: N802
        self, request: server_pb2.StreamLogsRequest
    ) -> AsyncIterator[server_pb2.StreamLogsResponse]:
        """Yield past lines, then, on request, each new one until the caller ends the stream."""
        count = request.past_lines if request.HasField("past_lines") else DEFAULT_PAST_LINES
        check_range("past_lines", count, 0, MAX_PAST_LINES)
        model = seen(self.catalogue, request.model).name if request.model else ""
        follower = self.ring.follow(model)
        try:
            for line in filter(self._is_line_shown, self.ring.past(count, model)):
                yield _line(line, 0)
            if request.follow:
                missed = 0
                async for line, dropped in follower.lines():
                    missed += dropped
                    if self._is_line_shown(line):
                        yield _line(line, missed)
                        missed = 0
        finally:
            follower.close()

    def _is_shown(self, request: Request) -> bool:
        """Say whether the caller may know of a request: its own, or any of its models for an administrator."""
        if request.key.principal == caller().name:
            return True
        return caller().is_admin and is_seen(self.catalogue, request.model)

    def _is_line_shown(self, line: LogLine) -> bool:
        """Say whether the caller may read a line: one of its models, or any where no model is hidden from it."""
        return caller().sees_all or (bool(line.model) and is_seen(self.catalogue, line.model))


async def _ask(instance: Instance) -> dict[RequestKey, server_pb2.RequestInfo]:
    """Return what a worker says of its requests; nothing where it does not answer in time, or is gone."""
    answer: worker_pb2.ListWorkerRequestsResponse | None = await ask(
        instance, "ListWorkerRequests", worker_pb2.ListWorkerRequestsRequest(), ASK_LIMIT_S
    )
    return {RequestKey(info.principal, info.request_id): info for info in answer.requests} if answer is not None else {}


def _info(request: Request, told: server_pb2.RequestInfo | None) -> server_pb2.RequestInfo:
    info = server_pb2.RequestInfo(state=server_pb2.RequestInfo.STATE_QUEUED)
    if told is not None:
        info.CopyFrom(told)
    if request.error is not None:
        info.state = server_pb2.RequestInfo.STATE_CANCELLING
    info.request_id = request.key.request_id
    info.model = request.model
    info.method = request.method.removeprefix("/")
    info.principal = request.key.principal
    info.start_time.CopyFrom(timestamp(request.start_time_s))
    return info


def _line(line: LogLine, dropped: int) -> server_pb2.StreamLogsResponse:
    return server_pb2.StreamLogsResponse(
        time=timestamp(line.time_s),
        level=line.level,
        model=line.model,
        instance_id=line.instance_id,
        message=line.event,
        fields=line.fields,
        dropped_lines=dropped,
    )
