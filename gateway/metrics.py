"""What is counted and timed as it happens, for Prometheus: RPCs, their messages, the lives of models, the event loop.

Labels are bounded: methods are those of the contract, models those of the catalogue up to a number, reasons words of a
form and up to a number. What is read at the moment of a scrape is in `gateway.gauges`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from gateway.ending import Ended
from gateway.model_status import ModelState
from gateway.pace import BOUNDS_S, Gaps

OTHER = "other"
MAX_MODELS = 1000
MAX_REASONS = 100
WAIT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
WHOLE_S = (*WAIT_S, 900.0, 3600.0)
LOAD_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0)
LAG_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
_REASON = re.compile(r"[A-Z][A-Z0-9_]{0,62}")

S = ModelState


class Names:
    """The values that a label has had: known ones stay themselves, and past a number of them new ones are `other`."""

    def __init__(self, most: int) -> None:
        """Take at most so many."""
        self._most = most
        self._known: set[str] = {""}

    def of(self, value: str) -> str:
        """Return the label for a value."""
        if value not in self._known:
            if len(self._known) > self._most:
                return OTHER
            self._known.add(value)
        return value


class Metrics(Collector):
    """Observes the gateway. Lives on one event loop.

    Attributes:
        registry: holds everything that a scrape gives.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        """Begin with nothing counted; `now` is in seconds."""
        disable_created_metrics()  # a time beside each number would double the page
        self.registry = registry = CollectorRegistry(auto_describe=True)
        self._now = now
        self._models = Names(MAX_MODELS)
        self._reasons = Names(MAX_REASONS)
        self._gaps: dict[str, Gaps] = {}
        self._load_began_s: dict[str, float] = {}
        called = ("method", "model")

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"pomona_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, labels: tuple[str, ...], bounds: tuple[float, ...]) -> Histogram:
            return Histogram(f"pomona_{name}_seconds", text, labels, buckets=bounds, registry=registry)

        self._requests = counter("requests", "RPCs that have their status.", "method", "model", "code", "reason")
        self._duration = histogram("request_duration", "From an RPC's arrival to its status.", called, WHOLE_S)
        self._queue = histogram("request_queue", "From a request's arrival to its admission.", called, WAIT_S)
        self._worker = histogram("request_worker_wait", "From admission until a worker was there.", called, WAIT_S)
        self._first = histogram("request_first_message", "From arrival to the answer's first message.", called, WHOLE_S)
        self._prompt = counter("request_prompt_tokens", "Prompt tokens of requests that have ended.", "model")
        self._cached = counter("request_cached_prompt_tokens", "Of those, found in the prefix cache.", "model")
        self._completion = counter("request_completion_tokens", "Output tokens of requests that have ended.", "model")
        self._changes = counter("model_changes", "How often a model entered a state.", "model", "state")
        self._restarts = counter("worker_restarts", "Workers started again after a crash.", "model")
        self._evictions = counter("model_evictions", "Models unloaded to make room for others.", "model")
        self._load = histogram(
            "model_load_duration", "From a load's start until the model was active.", ("model",), LOAD_S
        )
        self._lag = histogram("event_loop_lag", "How late the event loop ran a timer.", (), LAG_S)
        registry.register(self)

    def ended(self, end: Ended) -> None:
        """Count an RPC that has its status."""
        method, model, times = end.method.removeprefix("/"), self._models.of(end.model), end.times
        self._requests.labels(method, model, end.status, self._reason(end.reason)).inc()
        self._duration.labels(method, model).observe(times.ended_s - times.started_s)
        if times.admitted_s is not None:
            self._queue.labels(method, model).observe(times.admitted_s - times.started_s)
        if times.admitted_s is not None and times.called_s is not None:
            self._worker.labels(method, model).observe(times.called_s - times.admitted_s)
        if times.answered_s is not None:
            self._first.labels(method, model).observe(times.answered_s - times.started_s)
        if model:
            self._prompt.labels(model).inc(end.usage.prompt_tokens)
            self._cached.labels(model).inc(end.usage.cached_prompt_tokens)
            self._completion.labels(model).inc(end.usage.completion_tokens)

    def pace(self, model: str) -> Callable[[], None]:
        """Return what is to be called for each message that a client of `model` has taken, the first one too."""
        label = self._models.of(model)
        gaps = self._gaps.get(label)
        if gaps is None:
            gaps = self._gaps[label] = Gaps()
        return gaps.pace()

    def changed(self, model: str, old: ModelState, new: ModelState) -> None:
        """Count a model's change of state."""
        label = self._models.of(model)
        self._changes.labels(label, new.name.lower()).inc()
        if old is S.BACKING_OFF and new in {S.QUEUED, S.LOADING}:
            self._restarts.labels(label).inc()
        if new is S.LOADING:
            self._load_began_s[model] = self._now()
        elif old is S.LOADING:
            began_s = self._load_began_s.pop(model, None)
            if new is S.ACTIVE and began_s is not None:
                self._load.labels(label).observe(self._now() - began_s)

    def evicted(self, model: str) -> None:
        """Count a model that goes to make room."""
        self._evictions.labels(self._models.of(model)).inc()

    def lagged(self, seconds: float) -> None:
        """Count how late the event loop was."""
        self._lag.observe(seconds)

    def collect(self) -> list[CounterMetricFamily | HistogramMetricFamily]:
        """Return the messages and the gaps between them."""
        sent = CounterMetricFamily(
            "pomona_sent_messages", "Messages that clients of streams have taken.", labels=("model",)
        )
        gaps = HistogramMetricFamily(
            "pomona_message_gap_seconds", "Between two messages that a client has taken.", labels=("model",)
        )
        for model, counted in list(self._gaps.items()):
            sent.add_metric((model,), counted.messages)
            gaps.add_metric((model,), cumulated(BOUNDS_S, counted.counts), counted.total_s)
        return [sent, gaps]

    def _reason(self, reason: str) -> str:
        return self._reasons.of(reason) if not reason or _REASON.fullmatch(reason) else OTHER


def cumulated(bounds_s: tuple[float, ...], counts: list[int]) -> list[tuple[str, float]]:
    """Return buckets as Prometheus has them: each with its upper bound and what is in it and below."""
    buckets: list[tuple[str, float]] = []
    below = 0
    for bound, count in zip((*map(str, bounds_s), "+Inf"), counts, strict=True):
        below += count
        buckets.append((bound, below))
    return buckets
