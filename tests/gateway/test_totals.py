"""Totals over the workers of a model."""

from pomona.v1 import server_pb2

from gateway.totals import MAX_DURATIONS, TOTALS, WorkerTotals


def stats(tokens: int, *counts: int, name: str = "queue") -> server_pb2.ModelStats:
    durations = [
        server_pb2.DurationStat(name=name, bucket_bounds_us=[10, 20], bucket_counts=counts, total_us=100 * sum(counts))
    ]
    return server_pb2.ModelStats(completion_tokens_total=tokens, durations=durations if counts else [])


def test_every_total_of_a_heartbeat_is_summed() -> None:
    assert "completion_tokens_total" in TOTALS
    assert "audio_us_total" in TOTALS
    assert not {"requests_total", "restarts_total", "total_cache_tokens"} & set(TOTALS)


def test_totals_go_on_after_a_worker_was_replaced() -> None:
    totals = WorkerTotals()
    for instance, tokens in (("i1", 5), ("i1", 9), ("i2", 4), ("i2", 4), ("i2", 6)):
        totals.take("m", instance, stats(tokens))
    assert totals.sums("m")["completion_tokens_total"] == 9 + 6


def test_a_count_that_falls_takes_nothing_away() -> None:
    totals = WorkerTotals()
    for tokens in (9, 5, 6):
        totals.take("m", "i1", stats(tokens))
    assert totals.sums("m")["completion_tokens_total"] == 10


def test_durations_go_on_too() -> None:
    totals = WorkerTotals()
    totals.take("m", "i1", stats(0, 1, 2, 3))
    totals.take("m", "i1", stats(0, 2, 2, 3))
    totals.take("m", "i2", stats(0, 1, 0, 0))
    buckets = totals.durations("m")["queue"]
    assert (buckets.counts, buckets.total_us) == ([3, 2, 3], 800)


def test_a_histogram_that_is_none_is_left_out() -> None:
    totals = WorkerTotals()
    totals.take("m", "i1", stats(0, 1, 2))
    assert not totals.durations("m")


def test_what_is_timed_is_bounded() -> None:
    totals = WorkerTotals()
    for number in range(MAX_DURATIONS + 5):
        totals.take("m", f"i{number}", stats(0, 1, 1, 1, name=f"d{number}"))
    assert len(totals.durations("m")) == MAX_DURATIONS


def test_models_that_are_gone_are_forgotten() -> None:
    totals = WorkerTotals()
    totals.take("m", "i1", stats(3))
    totals.keep_only(["n"])
    assert not totals.sums("m")
