"""Sums what workers count over all the workers that a model has had, so that no total ever falls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from google.protobuf.descriptor import FieldDescriptor
from pomona.v1 import server_pb2

NUMBERS = frozenset({FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_DOUBLE})
SERVERS_OWN = frozenset({"restarts_total"})  # what the server counts, and no worker
TOTALS: tuple[str, ...] = tuple(
    one.name
    for one in server_pb2.ModelStats.DESCRIPTOR.fields
    if one.type in NUMBERS and one.name.endswith("_total") and one.name not in SERVERS_OWN
)
MAX_DURATIONS = 32  # of one model


@dataclass(slots=True)
class Buckets:
    """Durations by length.

    Attributes:
        bounds_us: upper bounds, in microseconds; what is longer than the last is counted behind it.
        counts: of each bucket, and of the one behind the last.
        total_us: of all durations.
    """

    bounds_us: tuple[int, ...]
    counts: list[int]
    total_us: int = 0

    def add(self, counts: Iterable[int], total_us: int) -> None:
        """Count others of the same bounds too."""
        self.counts = [old + new for old, new in zip(self.counts, counts, strict=True)]
        self.total_us += total_us


@dataclass(slots=True)
class _Counted:
    """What one model's workers have counted."""

    instance_id: str = ""
    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(TOTALS, 0.0))
    durations: dict[str, Buckets] = field(default_factory=dict[str, Buckets])
    last: server_pb2.ModelStats = field(default_factory=server_pb2.ModelStats)


class WorkerTotals:
    """Takes the stats of heartbeats as they come and gives the sums. Lives on one event loop."""

    def __init__(self) -> None:
        """Begin with nothing counted."""
        self._models: dict[str, _Counted] = {}

    def take(self, model: str, instance_id: str, stats: server_pb2.ModelStats) -> None:
        """Count what a worker has counted since it was taken last; a new instance begins at nothing."""
        counted = self._models.setdefault(model, _Counted())
        if counted.last is stats:
            return
        before = counted.last if counted.instance_id == instance_id else server_pb2.ModelStats()
        for name in TOTALS:
            counted.sums[name] += max(0.0, getattr(stats, name) - getattr(before, name))
        _take_durations(counted.durations, stats, before)
        counted.instance_id, counted.last = instance_id, stats

    def sums(self, model: str) -> Mapping[str, float]:
        """Return the sums of a model by the names of the fields; empty where it has had no worker."""
        counted = self._models.get(model)
        return MappingProxyType(counted.sums if counted is not None else {})

    def durations(self, model: str) -> Mapping[str, Buckets]:
        """Return the durations of a model by what was timed."""
        counted = self._models.get(model)
        return MappingProxyType(counted.durations if counted is not None else {})

    def keep_only(self, models: Iterable[str]) -> None:
        """Forget the models that are not among these."""
        kept = frozenset(models)
        for gone in self._models.keys() - kept:
            del self._models[gone]


def _take_durations(sums: dict[str, Buckets], stats: server_pb2.ModelStats, before: server_pb2.ModelStats) -> None:
    """Add what is new in the stats' histograms; those of other bounds than before begin anew."""
    old = {one.name: one for one in before.durations}
    for one in stats.durations:
        bounds = tuple(one.bucket_bounds_us)
        if len(one.bucket_counts) != len(bounds) + 1 or (one.name not in sums and len(sums) >= MAX_DURATIONS):
            continue
        if one.name not in sums or sums[one.name].bounds_us != bounds:
            sums[one.name] = Buckets(bounds, [0] * (len(bounds) + 1))
        last = old.get(one.name)
        if last is None or len(last.bucket_counts) != len(one.bucket_counts):
            last = server_pb2.DurationStat(bucket_counts=[0] * len(one.bucket_counts))
        added = [max(0, new - seen) for new, seen in zip(one.bucket_counts, last.bucket_counts, strict=True)]
        sums[one.name].add(added, max(0, one.total_us - last.total_us))
