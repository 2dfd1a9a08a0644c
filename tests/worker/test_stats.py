import itertools

import pytest

from models.registry import LoadedModel
from tests.worker.text_engines import request
from tests.worker.text_rows import row, sequence
from worker.histogram import BOUNDS_US, Histogram
from worker.job import Counts
from worker.phases import PhaseClock
from worker.stats import RATE_MEMORY_S, Rate, TextStats

# Histograms.


def test_bounds_grow_by_a_factor_of_about_two():
    assert (BOUNDS_US[0], BOUNDS_US[-1]) == (100, 50_000_000)
    assert all(2 <= after / before <= 2.5 for before, after in itertools.pairwise(BOUNDS_US))


@pytest.mark.parametrize(
    ("seconds", "place"), [(0.0, 0), (-1.0, 0), (0.0001, 0), (0.000101, 1), (0.001, 3), (50.0, 17), (51.0, 18)]
)
def test_a_duration_is_counted_under_the_first_bound_that_it_does_not_pass(seconds: float, place: int):
    histogram = Histogram("queue")
    histogram.add(seconds)
    found = histogram.snapshot()
    assert (found.name, found.bounds_us, found.total_us) == ("queue", BOUNDS_US, max(0, round(seconds * 1e6)))
    assert [index for index, count in enumerate(found.counts) if count] == [place]
    assert len(found.counts) == len(BOUNDS_US) + 1


def test_a_snapshot_does_not_change():
    histogram = Histogram("queue")
    before = histogram.snapshot()
    histogram.add(1.0)
    assert sum(before.counts) == 0


# Rates.


def test_a_rate_is_of_the_time_that_was_spent():
    rate = Rate()
    assert rate.tokens_per_second == 0
    rate.add(100, 0.5)
    rate.add(50, 0.5)
    assert rate.tokens_per_second == 150


def test_a_rate_forgets():
    rate = Rate()
    rate.add(1000, RATE_MEMORY_S)
    for _ in range(80):
        rate.add(10, 1.0)
    assert rate.tokens_per_second == pytest.approx(10, rel=0.01)


def test_work_that_took_no_time_has_no_rate():
    rate = Rate()
    rate.add(5, 0.0)
    assert rate.tokens_per_second == 0


# Totals.


def test_prompt_tokens_are_those_computed_and_those_found():
    stats = TextStats()
    stats.note_start(PhaseClock(submitted=1.0, started=1.5), num_cached=32)
    stats.note_prefill(10, 0.1)
    counts = stats.counts(2, 3)
    assert (counts.running, counts.queued) == (2, 3)
    assert (counts.prompt_tokens_total, counts.cached_prompt_tokens_total) == (42, 32)
    assert counts.prefill_tokens_per_second == pytest.approx(100)
    assert durations(counts) == {"queue": (1, 500_000), "time_to_first_token": (0, 0), "inter_token_gap": (0, 0)}


def test_the_first_token_of_a_request_is_timed_once_and_gaps_are_those_of_a_row(loaded: LoadedModel):
    stats, clock = TextStats(), PhaseClock(submitted=1.0, started=1.0)
    first, second = (row(loaded.make_cache(1), request()) for _ in range(2))
    stats.note_tokens(clock, first, 1, 3.0)
    stats.note_tokens(clock, second, 1, 4.0)
    stats.note_tokens(clock, first, 3, 5.0)
    stats.note_tokens(clock, second, 1, 5.0)
    assert clock.first_token == 3.0
    counts = stats.counts(0, 0)
    assert counts.completion_tokens_total == 6
    assert durations(counts)["time_to_first_token"] == (1, 2_000_000)
    assert durations(counts)["inter_token_gap"] == (2, 3_000_000)


def test_guesses_count_when_their_sequence_ends():
    stats = TextStats()
    for _ in range(2):
        ended = sequence(request())
        ended.num_drafted, ended.num_accepted = 7, 4
        stats.note_end(ended)
    counts = stats.counts(0, 0)
    assert (counts.drafted_tokens_total, counts.accepted_draft_tokens_total) == (14, 8)


def durations(counts: Counts) -> dict[str, tuple[int, int]]:
    return {each.name: (sum(each.counts), each.total_us) for each in counts.durations}
