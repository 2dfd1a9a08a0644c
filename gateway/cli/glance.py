"""What a server does at one moment, asked of its services: for `ps` and `top`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
from pomona.v1 import model_pb2, server_pb2

from gateway.cli import output
from gateway.cli.connection import Connection
from gateway.cli.models import every_model

NOT_TOLD = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNIMPLEMENTED)


@dataclass(frozen=True, slots=True)
class Glance:
    """What was told.

    Attributes:
        time_s: when, on the monotonic clock.
        server: its own numbers.
        models: those that are not simply unloaded, or all.
        stats: what is counted of those that have a worker, by name.
        requests: in flight, oldest first; None where the caller may not know.
    """

    time_s: float
    server: server_pb2.ServerStats
    models: tuple[model_pb2.Model, ...]
    stats: Mapping[str, server_pb2.ModelStats] = field(default_factory=dict[str, server_pb2.ModelStats])
    requests: tuple[server_pb2.RequestInfo, ...] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return it for `--json`."""
        models = [
            {
                "model": output.as_dict(model),
                "stats": output.as_dict(self.stats[model.model]) if model.model in self.stats else None,
            }
            for model in self.models
        ]
        requests = None if self.requests is None else [output.as_dict(each) for each in self.requests]
        return {"server": output.as_dict(self.server), "models": models, "requests": requests}


def glance(connection: Connection, *, every: bool = False) -> Glance:
    """Ask a server what it does now.

    Args:
        connection: to it.
        every: unloaded models too.
    """
    request = server_pb2.GetStatsRequest()
    stats = connection.server.GetStats(request, timeout=connection.query_timeout_s, metadata=connection.metadata)
    models = tuple(model for model in every_model(connection) if every or model.state != model_pb2.MODEL_STATE_UNLOADED)
    known = {each.model: each for each in stats.models}
    return Glance(time.monotonic(), stats.server, models, known, _requests(connection))


def _requests(connection: Connection) -> tuple[server_pb2.RequestInfo, ...] | None:
    request = server_pb2.ListRequestsRequest()
    try:
        answer = connection.admin.ListRequests(
            request, timeout=connection.query_timeout_s, metadata=connection.metadata
        )
    except grpc.RpcError as error:
        if isinstance(error, grpc.Call) and error.code() in NOT_TOLD:
            return None
        raise
    return tuple(answer.requests)


def duration_text(seconds: float) -> str:
    """Return a time as people read it at a glance: 4.2 s, 12 min, 3 h 05, 2 d 04 h."""
    if seconds < 60:
        return f"{max(0.0, seconds):.1f} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d}"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours:02d} h"


def cache_share(stats: server_pb2.ModelStats) -> str:
    """Return how full the cache of keys and values is; empty where there is none."""
    total = stats.total_cache_tokens
    return f"{stats.used_cache_tokens / total:.0%}" if total else ""


def age_s(model: model_pb2.Model) -> float | None:
    """Return since when a model's worker runs, in seconds; None where there is none."""
    if not model.workers or not model.workers[0].start_time.seconds:
        return None
    return time.time() - model.workers[0].start_time.ToNanoseconds() / 1e9


def keeping(model: model_pb2.Model) -> str:
    """Return how long a model stays without requests: that it is pinned, the time left, or nothing."""
    if model.pinned:
        return "pinned"
    if not model.unload_time.seconds:
        return ""
    return f"in {duration_text(model.unload_time.ToNanoseconds() / 1e9 - time.time())}"
