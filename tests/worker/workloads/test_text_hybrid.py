"""A model some of whose layers keep a state runs as others do: together, behind what is known, and never ahead."""

from dataclasses import replace
from pathlib import Path

import pytest

from models.checkpoint.checkpoint import open_checkpoint
from models.registry import LoadedModel, load
from models.step import NumericPath
from native import kernels
from tests.support.tiny_families import Tiny, write_family
from tests.worker.text_driving import Driven
from tests.worker.text_engines import details_of, request, tokens_of
from worker.events import Completed, Event
from worker.loading import loaded_message
from worker.prefixes import PrefixSettings
from worker.sequence import TextRequest
from worker.settings import WorkerSettings
from worker.text_settings import TextSettings

PROMPT = tuple(range(100))
pytestmark = pytest.mark.skipif(not kernels.is_available(), reason="built without the native extension")


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = write_family(tmp_path_factory.mktemp("hybrid") / "tiny", Tiny("qwen3_5"))
    return load(open_checkpoint(folder), NumericPath.FAST, lambda _: None)


def wanted(prompt: tuple[int, ...] = PROMPT, key: str = "r1", **fields: object) -> TextRequest:
    fields = {"max_tokens": 6, "token_details": True, **fields}
    return request(key, prompt, **fields)  # pyright: ignore[reportArgumentType]


def usage(events: list[Event]) -> Completed:
    last = events[-1]
    assert isinstance(last, Completed)
    return last


@pytest.mark.parametrize(
    ("second", "num_cached"),
    [
        (PROMPT, 96),
        ((*PROMPT, 7, 8, 9), 96),
        (PROMPT[:96], 64),
        ((*PROMPT[:50], *PROMPT[:50]), 32),
        ((5, *PROMPT), 0),
    ],
    ids=["the same", "longer", "whole blocks", "diverging", "another start"],
)
def test_a_prompt_begins_behind_the_states_that_earlier_ones_left(
    hybrid: LoadedModel, second: tuple[int, ...], num_cached: int
) -> None:
    driven = Driven(hybrid)
    driven.generate(wanted())
    found = driven.generate(wanted(second, "r2"))
    assert usage(found).usage.cached_prompt_tokens == num_cached
    assert details_of(found) == details_of(Driven(hybrid).generate(wanted(second)))
    driven.assert_nothing_is_held()


def test_requests_together_say_what_each_says_alone(hybrid: LoadedModel) -> None:
    driven = Driven(hybrid, TextSettings(prefill_chunk_tokens=40, prefixes=PrefixSettings(max_bytes=0)))
    prompts = {f"r{start}": PROMPT[start : start + 60] for start in (0, 7, 30)}
    for key, prompt in prompts.items():
        driven.admit(wanted(prompt, key, max_tokens=12))
    driven.finish()
    for key, prompt in prompts.items():
        alone = Driven(hybrid).generate(wanted(prompt, key, max_tokens=12))
        assert details_of(driven.events[key]) == details_of(alone)
    driven.assert_nothing_is_held()


def test_several_outputs_begin_behind_one_prompt(hybrid: LoadedModel) -> None:
    driven = Driven(hybrid)
    found = driven.generate(wanted(PROMPT[:64], num_sequences=3))
    assert usage(found).usage.completion_tokens == 18
    # The others have a block of the prompt, and compute the other one, whose last token they need.
    assert driven.workload.counts().prompt_tokens_total == 64 + 2 * 32
    driven.assert_nothing_is_held()


def test_what_a_talk_has_said_is_known_when_it_goes_on(hybrid: LoadedModel) -> None:
    driven = Driven(hybrid)
    first = driven.generate(wanted(PROMPT, max_tokens=40))
    said = tuple(tokens_of(first))
    found = driven.generate(wanted((*PROMPT, *said, 1, 2), "r2"))
    assert usage(found).usage.cached_prompt_tokens == 128


def test_no_more_rows_run_than_their_states_have_room(hybrid: LoadedModel) -> None:
    sizes, context = hybrid.kv_sizes, 200
    kv_bytes = sizes.rows_bytes(context, 1) + 2 * sizes.row_bytes + sizes.row_bytes // 2
    settings = TextSettings(max_batch_rows=8, max_context_tokens=context, kv_bytes=kv_bytes)
    assert settings.fitting(context, sizes).max_batch_rows == 3
    assert replace(settings, kv_bytes=1).fitting(context, sizes).max_batch_rows == 1
    assert replace(settings, kv_bytes=None).fitting(context, sizes) == replace(settings, kv_bytes=None)
    driven = Driven(hybrid, settings)
    for start in range(5):
        driven.admit(wanted(PROMPT[start : start + 40], f"r{start}"))
    driven.tick_once()
    assert driven.workload.counts().running == 3
    assert driven.cache.nbytes <= kv_bytes + driven.prefix_bytes
    driven.finish()
    driven.assert_nothing_is_held()


def test_nothing_is_guessed_ahead(hybrid: LoadedModel) -> None:
    settings = WorkerSettings(instance_id="0a", model="tiny", socket="/tmp/w.sock", secret="x", checkpoint="tiny")
    message = loaded_message(hybrid, 64, settings)
    assert (message.runtime.speculation, message.generation.prefix_cache) == ("", True)
    driven = Driven(hybrid)
    repeating = PROMPT[:8] * 8
    found = driven.generate(wanted(repeating, max_draft_tokens=4))
    assert usage(found).usage.drafted_tokens == 0


def test_a_folder_that_fits_is_loaded(tmp_path: Path) -> None:
    folder = write_family(tmp_path / "tiny", Tiny("qwen3_5_moe"))
    loaded = load(open_checkpoint(folder), NumericPath.FAST, lambda _: None)
    assert details_of(Driven(loaded).generate(wanted()))
