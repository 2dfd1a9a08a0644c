"""Room for keys and values: who waits for it, who gives it back, and that nobody waits for ever."""

from dataclasses import replace

import pytest

from models.registry import LoadedModel
from tests.worker.text_driving import Driven
from tests.worker.text_engines import request, tokens_of
from tests.worker.text_mixes import has_ended, outputs
from tests.worker.text_models import Models
from worker.errors import ModelLoadFailed
from worker.events import Completed
from worker.prefixes import PrefixSettings
from worker.sequence import StoppingSettings
from worker.text_settings import TextSettings

CONTEXT = 256
NO_PREFIXES = PrefixSettings(max_bytes=0)
LONG = tuple(range(200))


def settings(loaded: LoadedModel, num_contexts: int, num_rows: int = 4) -> TextSettings:
    kv_bytes = num_contexts * CONTEXT * loaded.token_bytes
    return TextSettings(num_rows, max_context_tokens=CONTEXT, kv_bytes=kv_bytes, prefixes=NO_PREFIXES)


@pytest.mark.parametrize("kind", ["plain", "window", "8", "rows"])
def test_a_row_without_room_waits_until_there_is_some(models: Models, kind: str):
    loaded = models(kind)
    whole = StoppingSettings(1000, eos_token_ids=frozenset())
    driven = Driven(loaded, settings(loaded, 2))
    for name in ("a", "b", "c"):
        driven.admit(request(name, stopping=replace(whole, max_tokens=1000 if name != "a" else 240)))
    driven.until(lambda: driven.workload.counts().completion_tokens_total > 20)
    if kind == "window":  # a pool for its layer alone, of which a row needs less than its whole context
        assert driven.states()[:2] == ["decoding", "decoding"]
    else:
        assert driven.states() == ["decoding", "decoding", "queued"]
        assert driven.workload.counts().queued == 1
    driven.until(lambda: has_ended(driven.events["a"]))
    driven.until(lambda: driven.state("c") == "decoding")
    driven.finish()
    assert all(isinstance(events[-1], Completed) for events in driven.events.values())
    driven.assert_nothing_is_held()


def test_small_requests_fit_beside_each_other(loaded: LoadedModel):
    driven = Driven(loaded, settings(loaded, 1))
    for name in "abcd":
        driven.admit(request(name, max_tokens=20))
    driven.until(lambda: driven.workload.counts().completion_tokens_total > 8)
    assert driven.states() == ["decoding"] * 4


def test_room_for_less_than_a_context_is_refused_by_name(loaded: LoadedModel):
    too_little = CONTEXT * loaded.token_bytes - 1
    with pytest.raises(ModelLoadFailed, match="kv_bytes") as caught:
        Driven(loaded, TextSettings(2, max_context_tokens=CONTEXT, kv_bytes=too_little, prefixes=NO_PREFIXES))
    assert caught.value.metadata["option"] == "kv_bytes"


@pytest.mark.parametrize("kind", ["plain", "8"])
def test_sequences_of_one_prompt_follow_each_other_where_there_is_room_for_one(models: Models, kind: str):
    loaded = models(kind)
    driven = Driven(loaded, settings(loaded, 1, num_rows=1))
    events = driven.generate(request(prompt=LONG, max_tokens=50, num_sequences=3, token_details=True))
    assert [len(tokens) for tokens, _, _ in outputs(events).values()] == [50] * 3
    # The prompt once, and what is no full block of it for each of the two others.
    assert driven.workload.counts().prompt_tokens_total == 200 + 2 * 8
    driven.assert_nothing_is_held()


def test_what_only_waiting_sequences_share_holds_up_nobody(loaded: LoadedModel):
    """One that waits for room is first in line, and those who keep it wait behind it."""
    driven = Driven(loaded, settings(loaded, 1, num_rows=1))
    wanted = request("shared", LONG, max_tokens=50, num_sequences=2, token_details=True)
    expected = outputs(Driven(loaded).generate(wanted))
    driven.admit(wanted)
    driven.until(lambda: driven.workload.counts().completion_tokens_total > 0)
    driven.admit(request("large", max_tokens=1000, priority=9))
    driven.finish()
    assert outputs(driven.events["shared"]) == expected
    assert has_ended(driven.events["large"])
    driven.assert_nothing_is_held()


def test_what_earlier_prompts_left_takes_no_room_from_rows(loaded: LoadedModel):
    kept = PrefixSettings(max_bytes=CONTEXT * loaded.token_bytes)
    driven = Driven(loaded, replace(settings(loaded, 2), prefixes=kept))
    for number in range(6):
        driven.generate(request(str(number), tuple(range(number, number + 200)), max_tokens=40))
    assert 0 < driven.prefix_bytes <= kept.max_bytes
    for name in "ab":
        driven.admit(request(name, tuple(range(50, 250)), max_tokens=1000))
    driven.until(lambda: driven.workload.counts().completion_tokens_total > 6 * 40 + 20)
    assert driven.states() == ["decoding", "decoding"]
    driven.finish()
    driven.assert_nothing_is_held()


def test_counters_tell_how_much_is_held(loaded: LoadedModel):
    driven = Driven(loaded, settings(loaded, 2))
    driven.admit(request(prompt=tuple(range(40)), max_tokens=100))
    driven.until(lambda: driven.cache.length(0) == 50)
    counts = driven.workload.counts()
    assert (counts.running, counts.total_cache_tokens) == (1, 2 * CONTEXT)
    assert counts.used_cache_tokens == 64  # whole blocks
    assert counts.cache_bytes == driven.cache.nbytes == 2 * 32 * loaded.token_bytes
    driven.cancel("r1")
    driven.assert_nothing_is_held()


def test_a_row_that_is_alone_can_fill_the_context(loaded: LoadedModel):
    driven = Driven(loaded, settings(loaded, 1))
    for name in "ab":
        driven.admit(request(name, max_tokens=1000, token_details=True))
    driven.finish()
    assert len(tokens_of(driven.events["a"])) == CONTEXT - 7
    assert tokens_of(driven.events["a"]) == tokens_of(driven.events["b"])
