"""What is counted as it happens."""

from dataclasses import replace
from typing import Any

import pytest
from pomona.v1 import common_pb2, model_pb2, server_pb2
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

import gateway.metrics
from gateway.ending import Ended, Times
from gateway.gauges import NOT_TOLD, Gauges, Moment, metric_name
from gateway.metrics import OTHER, Metrics
from gateway.model_status import ModelState, ModelStatus
from gateway.pace import Gaps
from gateway.totals import Buckets
from gateway.trace import continued_trace, told_trace

S = ModelState
TIMES = Times(10.0, 10.25, 10.75, 11.0, 12.0)
END = Ended("/a.B/C", "m", "r", "OK", "", TIMES, 3, common_pb2.Usage(prompt_tokens=5))


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_the_stations_of_a_request_are_timed() -> None:
    metrics = Metrics()
    metrics.ended(END)
    labels = {"method": "a.B/C", "model": "m"}
    assert value(metrics, "pomona_request_duration_seconds_sum", **labels) == 2.0
    assert value(metrics, "pomona_request_queue_seconds_sum", **labels) == 0.25
    assert value(metrics, "pomona_request_worker_wait_seconds_sum", **labels) == 0.5
    assert value(metrics, "pomona_request_first_message_seconds_sum", **labels) == 1.0
    assert value(metrics, "pomona_request_prompt_tokens_total", model="m") == 5


def test_a_request_that_was_refused_has_no_further_stations() -> None:
    metrics = Metrics()
    metrics.ended(
        replace(END, model="", status="NOT_FOUND", reason="MODEL_NOT_FOUND", times=Times(1, None, None, None, 2))
    )
    labels = {"method": "a.B/C", "model": ""}
    assert value(metrics, "pomona_requests_total", code="NOT_FOUND", reason="MODEL_NOT_FOUND", **labels) == 1
    assert value(metrics, "pomona_request_queue_seconds_count", **labels) is None


def test_labels_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway.metrics, "MAX_MODELS", 20)
    monkeypatch.setattr(gateway.metrics, "MAX_REASONS", 10)
    metrics = Metrics()
    for number in range(40):
        metrics.pace(f"m{number}")()
        metrics.ended(replace(END, model=f"m{number}", reason=f"R{number % 15}"))
    metrics.ended(replace(END, reason="/home/someone"))
    text = generate_latest(metrics.registry).decode()
    (requests,) = [one for one in text_string_to_metric_families(text) if one.name == "pomona_requests"]
    models = {one.labels["model"] for one in requests.samples}
    reasons = {one.labels["reason"] for one in requests.samples}
    assert (len(models), len(reasons)) == (20 + 1, 10 + 1)
    assert OTHER in models & reasons
    assert "someone" not in text


def test_a_load_is_timed_and_a_restart_counted() -> None:
    clock = Clock()
    metrics = Metrics(clock)
    for old, new, then_s in (
        (S.UNLOADED, S.LOADING, 4.0),
        (S.LOADING, S.ACTIVE, 1.0),
        (S.ACTIVE, S.BACKING_OFF, 1.0),
        (S.BACKING_OFF, S.LOADING, 9.0),
        (S.LOADING, S.FAILED, 1.0),
    ):
        metrics.changed("m", old, new)
        clock.now_s += then_s
    assert value(metrics, "pomona_model_load_duration_seconds_sum", model="m") == 4.0
    assert value(metrics, "pomona_model_load_duration_seconds_count", model="m") == 1
    assert value(metrics, "pomona_worker_restarts_total", model="m") == 1
    assert value(metrics, "pomona_model_changes_total", model="m", state="loading") == 2


def test_gaps_are_between_messages_of_one_answer() -> None:
    clock = Clock()
    gaps = Gaps(clock)
    first, second = gaps.pace(), gaps.pace()
    first()
    second()
    for step_s in (0.02, 0.04):
        clock.now_s += step_s
        first()
    assert gaps.messages == 4
    assert round(gaps.total_s, 6) == 0.06
    assert sum(gaps.counts) == 2


def test_every_number_of_a_heartbeat_is_a_metric() -> None:
    metrics, gauges = Metrics(), Gauges()
    metrics.registry.register(gauges)
    stats = server_pb2.ModelStats(running_requests=2, total_cache_tokens=64)
    stats.memory.expert_slab_bytes = 9
    gauges.moment = Moment(
        models=(ModelStatus("m", S.ACTIVE, stats=stats),),
        sums={"m": {"audio_us_total": 2_500_000.0, "completion_tokens_total": 7.0}},
        durations={"m": {"queue": Buckets((1_000, 2_000_000), [1, 2, 3], 7_000_000)}},
        server={"requests_waiting": 4.0},
    )
    expected: dict[tuple[str, str], float] = {
        ("pomona_worker_running_requests", ""): 2,
        ("pomona_worker_cache_tokens_limit", ""): 64,
        ("pomona_worker_expert_slab_bytes", ""): 9,
        ("pomona_worker_audio_seconds_total", ""): 2.5,
        ("pomona_worker_completion_tokens_total", ""): 7,
        ("pomona_worker_duration_seconds_bucket", "2.0"): 3,
        ("pomona_worker_duration_seconds_sum", ""): 7,
    }
    for (name, bound), wanted in expected.items():
        labels = {"model": "m", **({"what": "queue"} if "duration" in name else {}), **({"le": bound} if bound else {})}
        assert value(metrics, name, **labels) == wanted, name
    assert value(metrics, "pomona_requests_waiting") == 4
    assert value(metrics, "pomona_model_state", model="m", state="active") == 1
    assert value(metrics, "pomona_model_state", model="m", state="failed") == 0


def test_microseconds_become_seconds_in_names() -> None:
    assert metric_name("expert_stall_us_total") == "pomona_worker_expert_stall_seconds_total"
    assert metric_name("longest_wait_us") == "pomona_worker_longest_wait_seconds"
    assert metric_name("used_cache_tokens") == "pomona_worker_used_cache_tokens"


def test_names_of_metrics_are_their_own() -> None:
    metrics = Metrics()
    metrics.registry.register(Gauges())
    names = [family.name for family in metrics.registry.collect()]
    assert len(names) == len(set(names))
    fields: Any = model_pb2.MemoryUse.DESCRIPTOR.fields
    assert {f"pomona_worker_{one.name}" for one in fields if one.name not in NOT_TOLD} <= set(names)


def test_a_callers_trace_goes_on() -> None:
    told = f"00-{0xABC:032x}-{0xDEF:016x}-01"
    trace = told_trace((("traceparent", told),))
    assert trace is not None
    assert trace.traceparent == told
    inner = continued_trace((("traceparent", told),), 0.0)
    assert (inner.trace_id, inner.parent_id, inner.is_sampled) == (trace.trace_id, trace.parent_id, True)
    assert inner.traceparent == f"00-{trace.trace_id}-{inner.call_id}-01"


def test_what_is_no_trace_is_not_handed_on() -> None:
    for wrong in ("", "00-1-2-01", f"ff-{1:032x}-{1:016x}-01", f"00-{0:032x}-{1:016x}-01", f"00-{1:032X}-{1:016x}-0"):
        assert told_trace((("traceparent", wrong),)) is None
    assert told_trace(()) is None
    begun = continued_trace((("traceparent", "nonsense"),), 1.0)
    assert (begun.parent_id, begun.is_sampled) == ("", True)
    assert not continued_trace((), 0.0).is_sampled
