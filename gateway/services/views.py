"""What clients see of a model: its place in the catalogue, its checkpoint's headers and its state, put together."""

from __future__ import annotations

import math

from google.protobuf import duration_pb2, timestamp_pb2
from pomona.v1 import model_pb2

from gateway.catalogue import Catalogue, CatalogueModel
from gateway.errors import GatewayError
from gateway.experts import experts_mode
from gateway.load_options import in_effect
from gateway.model_status import ModelState, ModelStatus, WorkerFacts
from gateway.status import failure_of

STATE_WITHOUT_FAILURE = frozenset({ModelState.LOADING, ModelState.ACTIVE, ModelState.DEGRADED, ModelState.DRAINING})


async def view_of(model: CatalogueModel, status: ModelStatus, catalogue: Catalogue) -> model_pb2.Model:
    """Return the message that tells a client of `model` in `status`."""
    description = await catalogue.describe(model)
    view = model_pb2.Model()
    view.CopyFrom(status.facts if status.facts is not None else description.facts)
    view.model = model.name
    if not view.display_name:
        view.display_name = model.name
    view.aliases[:] = model.aliases
    view.state = model_pb2.ModelState.ValueType(status.state)
    view.waiting_for = status.waiting_for
    _add_limits(view, model, status)
    _add_process(view, status)
    failure = status.failure or (None if status.state in STATE_WITHOUT_FAILURE else description.failure)
    _add_failure(view, failure)
    return view


def timestamp(seconds: float) -> timestamp_pb2.Timestamp:
    """Return a time, in seconds since 1970, as a message."""
    moment = timestamp_pb2.Timestamp()
    moment.FromNanoseconds(round(seconds * 1e9))
    return moment


def seconds_of(duration: duration_pb2.Duration) -> float:
    """Return a duration in seconds; an impossible one is not a number, so that no range holds it."""
    if abs(duration.seconds) > 10**9 or abs(duration.nanos) >= 10**9:
        return math.nan
    return duration.seconds + duration.nanos / 1e9


def _add_limits(view: model_pb2.Model, model: CatalogueModel, status: ModelStatus) -> None:
    """Say what would hold, or does hold, once the model is loaded."""
    if status.facts is not None:
        return
    held = in_effect(status.options, model)
    if held.context_tokens:
        most = view.limits.max_context_tokens or held.context_tokens
        view.limits.max_context_tokens = min(held.context_tokens, most)
    if model_pb2.Model.TASK_GENERATE in view.tasks and view.limits.max_context_tokens:
        view.limits.max_output_tokens = view.limits.max_context_tokens - 1
    view.limits.max_batch_rows = held.max_batch_rows or model.max_batch_rows
    view.runtime.options.kv_scheme = held.kv_scheme or model.kv_scheme
    view.runtime.path = model.path
    if view.HasField("experts"):
        view.runtime.options.experts_mode = experts_mode(held.experts)


def _add_process(view: model_pb2.Model, status: ModelStatus) -> None:
    if status.progress is not None and status.state is ModelState.LOADING:
        view.load_progress.phase = status.progress.phase
        view.load_progress.bytes_done = status.progress.bytes_done
        view.load_progress.bytes_total = status.progress.bytes_total
    del view.workers[:]
    if status.worker is not None:
        view.workers.append(_worker(status.worker))
        if status.stats is not None:
            view.memory.MergeFrom(status.stats.memory)
        view.memory.reserved_bytes = status.reserved_bytes
    if status.last_used_s is not None:
        view.last_used_time.CopyFrom(timestamp(status.last_used_s))
    if status.unload_time_s is not None:
        view.unload_time.CopyFrom(timestamp(status.unload_time_s))
    view.pinned = status.pinned


def _worker(facts: WorkerFacts) -> model_pb2.WorkerInfo:
    return model_pb2.WorkerInfo(
        instance_id=facts.instance_id,
        pid=facts.pid,
        start_time=timestamp(facts.start_time_s),
        restart_count=facts.restart_count,
        last_exit=facts.last_exit,
    )


def _add_failure(view: model_pb2.Model, failure: GatewayError | None) -> None:
    if failure is not None:
        view.failure.CopyFrom(failure_of(failure))
