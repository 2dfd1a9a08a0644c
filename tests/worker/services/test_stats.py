"""The message of a workload's counts."""

from dataclasses import fields, replace

from worker.job import Counts, Durations
from worker.services.stats import COUNTED, stats_message

FULL = Counts(
    running=3,
    queued=2,
    prompt_tokens_total=1000,
    cached_prompt_tokens_total=400,
    completion_tokens_total=77,
    drafted_tokens_total=20,
    accepted_draft_tokens_total=11,
    step_tokens=5,
    used_cache_tokens=640,
    total_cache_tokens=4096,
    cache_bytes=9000,
    prefix_bytes=4000,
    adapters_bytes=500,
    evictions_total=6,
    expert_slab_bytes=70,
    mapped_expert_bytes=80,
    expert_hit_ratio=0.75,
    expert_bytes_read_total=90,
    expert_stall_us_total=1500,
    prefill_tokens_per_second=812.5,
    decode_tokens_per_second=64.25,
    durations=(Durations("queue", (100, 200), (1, 0, 2), 5300),),
)


def test_every_count_is_told() -> None:
    told = stats_message("tiny", FULL, 123_456)
    assert (told.model, told.running_requests, told.queued_requests) == ("tiny", 3, 2)
    assert {name: getattr(told, name) for name in COUNTED} == {name: getattr(FULL, name) for name in COUNTED}
    memory = told.memory
    assert (memory.footprint_bytes, memory.cache_bytes, memory.prefix_cache_bytes) == (123_456, 9000, 4000)
    assert memory.adapters_bytes == 500
    assert (memory.expert_slab_bytes, memory.mapped_expert_bytes) == (70, 80)
    (queue,) = told.durations
    assert (queue.name, list(queue.bucket_bounds_us), list(queue.bucket_counts)) == ("queue", [100, 200], [1, 0, 2])
    assert queue.total_us == 5300


def test_a_new_count_does_not_get_lost() -> None:
    elsewhere = {"running", "queued", "cache_bytes", "prefix_bytes", "adapters_bytes", "durations"}
    elsewhere |= {"expert_slab_bytes", "mapped_expert_bytes"}
    # Of the step itself, which the heartbeat tells beside the stats.
    apart = {"step_tokens"}
    assert {each.name for each in fields(Counts)} == set(COUNTED) | elsewhere | apart


def test_before_the_load_all_is_zero() -> None:
    told = stats_message("tiny", Counts(), 1)
    assert told.ListFields()[0][1] == "tiny"
    assert [each.name for each, _ in told.ListFields()] == ["model", "memory"]
    assert not stats_message("tiny", replace(FULL, durations=()), 1).durations
