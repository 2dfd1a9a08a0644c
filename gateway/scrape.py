"""One scrape: what is known is read at once and put into text in slices between other work; no worker is asked."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Mapping

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.footprint import footprint_bytes
from gateway.gauges import Gauges, Moment
from gateway.memory import machine_memory
from gateway.metrics import Metrics
from gateway.metrics_server import Exposition
from gateway.totals import WorkerTotals
from gateway.watched import Watched

SLICE_S = 0.001  # of the event loop's time
SAMPLES_AT_ONCE = 100
HEARTBEAT_S = 0.5  # how often heartbeats are looked for: a worker that goes is missed by no more


class Scraper:
    """Gives all metrics as text. Lives on one event loop.

    Args:
        metrics: what is counted as it happens.
        watched: what is read at the moment.
    """

    def __init__(self, metrics: Metrics, watched: Watched) -> None:
        self._metrics = metrics
        self._watched = watched
        self._totals = WorkerTotals()
        self._gauges = Gauges()
        self._one = asyncio.Lock()
        metrics.registry.register(self._gauges)

    async def follow(self) -> None:
        """Add up the heartbeats of workers until it is cancelled."""
        while True:
            self.add_up()
            await asyncio.sleep(HEARTBEAT_S)

    def add_up(self) -> None:
        """Take what the workers' last heartbeats have counted."""
        models = self._watched.catalogue.models
        self._totals.keep_only(model.name for model in models)
        for model in models:
            status = self._watched.workers.state(model.name)
            if status.stats is not None and status.worker is not None:
                self._totals.take(model.name, status.worker.instance_id, status.stats)

    async def text(self) -> Exposition:
        """Return the text of all metrics."""
        async with self._one:
            own = await asyncio.to_thread(_own_memory)
            self.add_up()
            self._gauges.moment = self._moment(own)
            return Exposition(CONTENT_TYPE_PLAIN_0_0_4, await self._written())

    def _moment(self, own: Mapping[str, float]) -> Moment:
        watched, totals, memory = self._watched, self._totals, self._watched.workers.memory()
        statuses = tuple(watched.workers.state(model.name) for model in watched.catalogue.models)
        names = [status.model for status in statuses]
        return Moment(
            models=statuses,
            sums={name: totals.sums(name) for name in names},
            durations={name: totals.durations(name) for name in names},
            server={
                "requests_in_flight": len(watched.requests),
                "requests_waiting": watched.admission.num_waiting,
                "request_held_bytes": watched.admission.held_bytes,
                "memory_budget_bytes": memory.budget_bytes,
                "memory_reserved_bytes": memory.reserved_bytes,
                "memory_pressure": memory.pressure,
                **own,
            },
        )

    async def _written(self) -> bytes:
        """Write metric by metric, and let others have their turn in between.

        A thread would not do: Python lets it run for five milliseconds before the loop gets its turn, again and again.
        """
        parts: list[bytes] = []
        began_s = time.monotonic()
        for family in self._metrics.registry.collect():
            for first in range(0, max(1, len(family.samples)), SAMPLES_AT_ONCE):
                parts.append(_written(family, first))
                if time.monotonic() - began_s > SLICE_S:
                    await asyncio.sleep(0)
                    began_s = time.monotonic()
        return b"".join(parts)


class _Some(Collector):
    """Collects one metric."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        """Return it."""
        return (self._family,)


def _written(family: Metric, first: int) -> bytes:
    """Return the lines of some samples of a metric, those of the first with what it is about."""
    some = Metric(family.name, family.documentation, family.type, family.unit)
    some.samples = family.samples[first : first + SAMPLES_AT_ONCE]
    lines = generate_latest(_Some(some))  # pyright: ignore[reportArgumentType] - it asks for no more than `collect`
    return lines if not first else b"".join(line for line in lines.splitlines(True) if not line.startswith(b"#"))


def _own_memory() -> dict[str, float]:
    """Read the memory of this process and of the machine; may block."""
    return {
        "server_footprint_bytes": float(footprint_bytes(os.getpid()) or 0),
        "memory_total_bytes": float(machine_memory().total_bytes),
    }
