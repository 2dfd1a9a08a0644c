"""Several outputs of one prompt."""

from dataclasses import replace

import pytest

from models.registry import LoadedModel
from tests.worker.text_driving import Driven
from tests.worker.text_engines import request
from tests.worker.text_mixes import outputs
from worker.events import Completed, PrefillProgress, SequenceFinished, Started, TextDelta, Usage
from worker.prefixes import PrefixSettings
from worker.sequence import SamplingSettings, State, TextRequest, seed_of
from worker.text_settings import TextSettings

PROMPT = tuple(range(100))


def wanted(num_sequences: int = 3, **fields: object) -> TextRequest:
    fields = {"prompt": PROMPT, "sampling": SamplingSettings(seed=9), "token_details": True, **fields}
    return request(num_sequences=num_sequences, **fields)  # pyright: ignore[reportArgumentType]


def test_each_has_a_seed_of_its_own_and_says_what_it_says_alone(loaded: LoadedModel):
    found = outputs(Driven(loaded).generate(wanted()))
    alone = [
        outputs(Driven(loaded).generate(wanted(1, sampling=SamplingSettings(seed=seed_of(9, index)))))[0]
        for index in range(3)
    ]
    assert [tokens for tokens, _, _ in found.values()] == [tokens for tokens, _, _ in alone]
    assert len({tuple(tokens) for tokens, _, _ in alone}) == 3


@pytest.mark.parametrize("max_bytes", [0, 1 << 20], ids=["without a prefix cache", "with one"])
def test_the_prompt_is_computed_once(loaded: LoadedModel, max_bytes: int):
    driven = Driven(loaded, TextSettings(prefixes=PrefixSettings(max_bytes=max_bytes)))
    events = driven.generate(wanted())
    # All of it once, and for each of the others the four tokens behind its last full block.
    assert driven.workload.counts().prompt_tokens_total == 100 + 2 * 4
    assert sum(chunk.row.num_tokens for plan in driven.plans for chunk in plan.prefill) == 100 + 2 * 4
    last = events[-1]
    assert isinstance(last, Completed)
    assert last.usage == Usage(100, 24)
    driven.assert_nothing_is_held()


def test_followers_wait_while_the_prompt_is_computed(loaded: LoadedModel):
    driven = Driven(loaded, TextSettings(prefill_chunk_tokens=30))
    driven.admit(wanted())
    for _ in range(3):
        driven.tick_once()
        assert [len(plan.prefill) for plan in driven.plans] == [1] * len(driven.plans)
    rows = driven.workload._groups["r1"].rows
    assert [row.sequence.state for row in rows] == [State.PREFILLING, State.QUEUED, State.QUEUED]
    driven.tick_once()
    driven.tick_once()
    assert len(driven.plans[-1].prefill) == 2


def test_the_reader_is_told_once_of_the_start_and_of_the_end(loaded: LoadedModel):
    events = Driven(loaded, TextSettings(prefill_chunk_tokens=50)).generate(wanted(prefill_progress=True))
    kinds = [type(event) for event in events]
    assert (kinds.count(Started), kinds.count(Completed), kinds.count(SequenceFinished)) == (1, 1, 3)
    progress = [event.processed_tokens for event in events if isinstance(event, PrefillProgress)]
    assert progress == [50, 100]
    ends = [event.sequence_index for event in events if isinstance(event, SequenceFinished)]
    assert sorted(ends) == [0, 1, 2]
    for index in range(3):
        last = max(place for place, event in enumerate(events) if _is_delta_of(event, index))
        end = events[last + 1]
        assert isinstance(end, SequenceFinished)
        assert end.sequence_index == index


def _is_delta_of(event: object, index: int) -> bool:
    return isinstance(event, TextDelta) and event.sequence_index == index


@pytest.mark.parametrize("num_rows", [1, 2, 16])
def test_fewer_rows_than_sequences_only_take_longer(loaded: LoadedModel, num_rows: int):
    expected = outputs(Driven(loaded).generate(wanted(5)))
    driven = Driven(loaded, TextSettings(num_rows))
    assert outputs(driven.generate(wanted(5))) == expected
    driven.assert_nothing_is_held()


@pytest.mark.parametrize("num_ticks", range(1, 9))
def test_cancelling_ends_all_of_them(loaded: LoadedModel, num_ticks: int):
    driven = Driven(loaded, TextSettings(2, prefill_chunk_tokens=40, prefixes=PrefixSettings(max_bytes=0)))
    driven.admit(wanted(4))
    for _ in range(num_ticks):
        driven.tick_once()
    driven.cancel("r1")
    assert not driven.tick_once()
    driven.assert_nothing_is_held()


def test_a_short_prompt_is_computed_by_each(loaded: LoadedModel):
    driven = Driven(loaded)
    driven.generate(wanted(prompt="short"))
    assert driven.workload.counts().prompt_tokens_total == 3 * 5


def test_a_pause_stops_all_of_them(loaded: LoadedModel):
    driven = Driven(loaded)
    driven.admit(replace(wanted(), stopping=replace(wanted().stopping, max_tokens=30)), max_bytes=100)
    driven.until(lambda: driven.state("r1") == "paused")
    assert not driven.tick_once()
    for _ in range(200):
        driven.read("r1")
        driven.tick_once()
    last = driven.events["r1"][-1]
    assert isinstance(last, Completed)
    assert last.usage.completion_tokens == 90
