"""What a heartbeat says of a model's work: a workload's counts as their message."""

from pomona.v1 import server_pb2

from worker.job import Counts, Durations
from worker.turn import TurnStats

# Fields that both sides call the same.
COUNTED = (
    "used_cache_tokens",
    "total_cache_tokens",
    "prompt_tokens_total",
    "cached_prompt_tokens_total",
    "completion_tokens_total",
    "drafted_tokens_total",
    "accepted_draft_tokens_total",
    "audio_us_total",
    "evictions_total",
    "expert_hit_ratio",
    "expert_bytes_read_total",
    "expert_stall_us_total",
    "prefill_tokens_per_second",
    "decode_tokens_per_second",
)


def stats_message(
    model: str, counts: Counts, footprint_bytes: int, turn: TurnStats | None = None
) -> server_pb2.ModelStats:
    """Return the counts of a model.

    Args:
        model: canonical name.
        counts: of its workload.
        footprint_bytes: memory of the whole process.
        turn: what its turns on the device cost; None: it takes none.
    """
    turn = turn or TurnStats()
    durations = counts.durations if turn.waits is None else (*counts.durations, turn.waits)
    message = server_pb2.ModelStats(
        model=model,
        running_requests=counts.running,
        queued_requests=counts.queued,
        durations=[_duration_stat(each) for each in durations],
        turn_wait_us_total=turn.wait_us_total,
        turn_held_us_total=turn.held_us_total,
        **{name: getattr(counts, name) for name in COUNTED},
    )
    message.memory.footprint_bytes = footprint_bytes
    message.memory.cache_bytes = counts.cache_bytes
    message.memory.prefix_cache_bytes = counts.prefix_bytes
    message.memory.adapters_bytes = counts.adapters_bytes
    message.memory.expert_slab_bytes = counts.expert_slab_bytes
    message.memory.mapped_expert_bytes = counts.mapped_expert_bytes
    return message


def _duration_stat(durations: Durations) -> server_pb2.DurationStat:
    return server_pb2.DurationStat(
        name=durations.name,
        bucket_bounds_us=durations.bounds_us,
        bucket_counts=durations.counts,
        total_us=durations.total_us,
    )
