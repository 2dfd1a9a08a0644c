"""What a scrape reads of the moment: states of models, heartbeats of workers, requests that wait, memory.

Whatever number a heartbeat carries becomes a metric by its own name, so that a new field needs nothing here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.descriptor import Descriptor
from pomona.v1 import model_pb2, server_pb2
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.metrics import cumulated
from gateway.model_status import ModelState, ModelStatus
from gateway.totals import NUMBERS, TOTALS, Buckets

PREFIX = "pomona_worker_"
GAUGES = tuple(
    one.name
    for one in server_pb2.ModelStats.DESCRIPTOR.fields
    if one.type in NUMBERS and not one.name.endswith("_total")
)
# Of a model's memory, what no heartbeat tells; what is reserved for it the server knows.
NOT_TOLD = frozenset({"weights_bytes", "resident_expert_bytes", "limit_bytes"})
RESERVED = "reserved_bytes"
RENAMED = {"total_cache_tokens": "cache_tokens_limit"}  # `total` means a sum elsewhere


@dataclass(frozen=True, slots=True)
class Moment:
    """What was read, to be put into words.

    Attributes:
        models: the status of each model of the catalogue.
        sums: by model, what its workers have counted by the fields' names.
        durations: by model, what its workers have timed.
        server: numbers of the server by name.
    """

    models: tuple[ModelStatus, ...] = ()
    sums: Mapping[str, Mapping[str, float]] = field(default_factory=dict[str, Mapping[str, float]])
    durations: Mapping[str, Mapping[str, Buckets]] = field(default_factory=dict[str, Mapping[str, Buckets]])
    server: Mapping[str, float] = field(default_factory=dict[str, float])


SERVER_GAUGES = {
    "requests_in_flight": "Requests that have no status yet.",
    "requests_waiting": "Requests that wait for admission.",
    "request_held_bytes": "Of requests that wait or whose answer has not begun.",
    "server_footprint_bytes": "Memory of the server's own process that only its end gives back.",
    "memory_total_bytes": "Of the machine, or of the container.",
    "memory_budget_bytes": "What workers may take together.",
    "memory_reserved_bytes": "What is set aside for workers.",
    "memory_pressure": "1 normal, 2 above the soft limit, 3 above the hard one.",
}


class Gauges(Collector):
    """Puts the moment that it is given into metrics."""

    def __init__(self) -> None:
        """Begin with nothing known."""
        self.moment = Moment()

    def collect(self) -> Iterator[Metric]:
        """Yield every metric, also those of which nothing is known."""
        moment = self.moment
        for name, text in SERVER_GAUGES.items():
            family = GaugeMetricFamily(f"pomona_{name}", text)
            if name in moment.server:
                family.add_metric((), moment.server[name])
            yield family
        yield _states(moment)
        for name in GAUGES:
            yield _gauge(name, moment, "stats")
        for name in memory_fields(model_pb2.MemoryUse.DESCRIPTOR):
            yield _gauge(name, moment, "memory")
        for name in TOTALS:
            yield _total(name, moment)
        yield _durations(moment)


def memory_fields(descriptor: Descriptor) -> tuple[str, ...]:
    """Return the names of a message's numbers that are told."""
    return tuple(one.name for one in descriptor.fields if one.type in NUMBERS and one.name not in NOT_TOLD)


def metric_name(field_name: str) -> str:
    """Return what a field of a heartbeat is called as a metric: in seconds instead of microseconds."""
    name = RENAMED.get(field_name, field_name)
    return (
        PREFIX
        + name.replace("_us_total", "_seconds_total").removesuffix("_us")
        + ("_seconds" if name.endswith("_us") else "")
    )


def _states(moment: Moment) -> Metric:
    family = GaugeMetricFamily("pomona_model_state", "1 for the state that a model is in.", labels=("model", "state"))
    for status in moment.models:
        for state in ModelState:
            family.add_metric((status.model, state.name.lower()), float(status.state is state))
    return family


def _gauge(name: str, moment: Moment, where: str) -> Metric:
    family = GaugeMetricFamily(metric_name(name), f"{_words(name)}, as the last heartbeat told.", labels=("model",))
    for status in moment.models:
        if status.stats is not None:
            holder: Any = status if name == RESERVED else status.stats if where == "stats" else status.stats.memory
            family.add_metric((status.model,), _seconds(name, getattr(holder, name)))
    return family


def _total(name: str, moment: Moment) -> Metric:
    full = metric_name(name).removesuffix("_total")
    family = CounterMetricFamily(full, f"{_words(name)}, over all workers of the model.", labels=("model",))
    for model, sums in moment.sums.items():
        if name in sums:
            family.add_metric((model,), _seconds(name, sums[name]))
    return family


def _durations(moment: Moment) -> Metric:
    family = HistogramMetricFamily(
        f"{PREFIX}duration_seconds",
        "What workers time: queue, time_to_first_token, inter_token_gap and others.",
        labels=("model", "what"),
    )
    for model, timed in moment.durations.items():
        for what, buckets in timed.items():
            bounds = tuple(bound / 1e6 for bound in buckets.bounds_us)
            family.add_metric((model, what), cumulated(bounds, buckets.counts), buckets.total_us / 1e6)
    return family


def _seconds(name: str, value: float) -> float:
    return value / 1e6 if name.removesuffix("_total").endswith("_us") else value


def _words(name: str) -> str:
    return name.removesuffix("_total").removesuffix("_us").replace("_", " ").capitalize()
