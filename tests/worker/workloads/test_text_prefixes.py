"""What earlier prompts leave behind changes how fast a prompt is computed and nothing else."""

import random
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from models.blocks import BLOCK_TOKENS
from models.layers.block_group import NO_BLOCK
from models.layers.cache import Part
from models.layers.paged_cache import PagedCache, PagedPart
from models.registry import LoadedModel
from tests.worker.text_driving import Driven
from tests.worker.text_engines import details_of, request
from tests.worker.text_models import WINDOW, Models, tiny, windowed
from worker import loaded_text, prefix_cache
from worker.events import Completed, Event
from worker.prefixes import Prefixes, PrefixSettings
from worker.row import Row
from worker.sequence import CacheUse, SamplingSettings, TextRequest
from worker.text_settings import TextSettings

PROMPT = tuple(range(100))
BYPASS = CacheUse(is_bypassed=True)


def wanted(prompt: tuple[int, ...] = PROMPT, key: str = "r1", **fields: object) -> TextRequest:
    fields = {"max_tokens": 4, "token_details": True, "top_logprobs": 3, **fields}
    return request(key, prompt, **fields)  # pyright: ignore[reportArgumentType]


def cached(events: list[Event]) -> int:
    """Return how many tokens of a prompt were found, as the reader is told."""
    last = events[-1]
    assert isinstance(last, Completed)
    return last.usage.cached_prompt_tokens


# One prompt, then another.


@pytest.mark.parametrize(
    ("first", "second", "num_cached"),
    [
        (PROMPT, PROMPT, 96),
        (PROMPT, (*PROMPT, 1, 2, 3), 96),
        (PROMPT, PROMPT[:96], 64),  # never all of it: its last token has to be computed
        (PROMPT, PROMPT[:97], 96),
        (PROMPT, (*PROMPT[:70], 200, *PROMPT[71:]), 64),
        (PROMPT, (200, *PROMPT[1:]), 0),
        (PROMPT[:31], PROMPT[:31], 0),
    ],
    ids=["the same", "longer", "whole blocks", "one more", "diverging", "another start", "short"],
)
def test_a_prompt_begins_behind_the_blocks_that_it_shares(
    loaded: LoadedModel, first: tuple[int, ...], second: tuple[int, ...], num_cached: int
):
    driven = Driven(loaded)
    assert cached(driven.generate(wanted(first))) == 0
    found = driven.generate(wanted(second))
    assert cached(found) == num_cached
    assert details_of(found) == details_of(Driven(loaded).generate(wanted(second)))
    counts = driven.workload.counts()
    assert counts.cached_prompt_tokens_total == num_cached
    assert counts.prompt_tokens_total == len(first) + len(second)
    driven.assert_nothing_is_held()


def test_a_turn_of_a_chat_begins_behind_the_answer_before(loaded: LoadedModel):
    driven = Driven(loaded)
    first = driven.generate(wanted(max_tokens=100))
    answer = tuple(detail.id for detail in details_of(first))
    turn = wanted((*PROMPT, *answer, 7, 8, 9))
    # The answer's last token was never computed.
    assert cached(driven.generate(turn)) == 192
    assert details_of(driven.events["r1"]) == details_of(Driven(loaded).generate(turn))


@pytest.mark.parametrize(("num_ticks", "num_cached"), [(2, 0), (3, 0), (4, 96)])
def test_a_prompt_is_shared_once_its_first_token_was_read(loaded: LoadedModel, num_ticks: int, num_cached: int):
    driven = Driven(loaded, TextSettings(prefill_chunk_tokens=40))
    driven.admit(wanted(key="first", max_tokens=20))
    for _ in range(num_ticks):
        driven.tick_once()
        check_bytes(driven)
    driven.admit(wanted(key="second", max_tokens=20))
    driven.finish()
    assert cached(driven.events["second"]) == num_cached
    assert details_of(driven.events["second"]) == details_of(driven.events["first"])
    driven.assert_nothing_is_held()


def test_a_prompt_that_is_dropped_before_its_first_token_leaves_nothing(loaded: LoadedModel):
    driven = Driven(loaded, TextSettings(prefill_chunk_tokens=40))
    driven.admit(wanted())
    driven.tick_once()
    driven.tick_once()
    assert driven.prefix_bytes == 2 * BLOCK_TOKENS * loaded.token_bytes  # kept, and not to be found
    driven.cancel("r1")
    assert driven.prefix_bytes == 0
    driven.assert_nothing_is_held()


@pytest.mark.parametrize("kind", ["plain", "rows"])
def test_a_window_is_reused_at_the_ends_of_chunks(models: Models, kind: str):
    driven = Driven(windowed(models(kind), WINDOW, None), TextSettings(prefill_chunk_tokens=64))
    driven.generate(wanted(tuple(range(200))))
    assert cached(driven.generate(wanted((*range(80), *range(120, 160))))) == 64


def test_who_bypasses_the_cache_neither_reads_nor_adds(loaded: LoadedModel):
    driven = Driven(loaded)
    driven.generate(wanted(cache=BYPASS))
    assert driven.prefix_bytes == 0
    driven.generate(wanted())
    held = driven.prefix_bytes
    assert cached(driven.generate(wanted((*PROMPT, *range(60)), cache=BYPASS))) == 0
    assert driven.prefix_bytes == held > 0
    driven.assert_nothing_is_held()


def test_only_those_of_one_namespace_share(loaded: LoadedModel):
    driven = Driven(loaded)
    spaces = ["", "tenant", "", "tenant", "other"]
    found = [cached(driven.generate(wanted(cache=CacheUse(namespace=space)))) for space in spaces]
    assert found == [0, 0, 96, 96, 0]
    assert driven.prefix_bytes == 3 * 3 * BLOCK_TOKENS * loaded.token_bytes


def test_nothing_is_kept_where_the_settings_say_so(loaded: LoadedModel):
    driven = Driven(loaded, TextSettings(prefixes=PrefixSettings(max_bytes=0)))
    driven.generate(wanted())
    assert cached(driven.generate(wanted())) == 0
    assert driven.cache.nbytes == 0


# Random histories.


class ColdRunDiffersError(AssertionError):
    """Raised with the seed that shows it."""


@dataclass
class History:
    """Prompts that begin alike and diverge, one after the other and beside each other, as the seed decides."""

    seed: int
    loaded: LoadedModel
    num_found: int = field(default=0, init=False)
    num_evicted: int = field(default=0, init=False)

    def run(self) -> None:
        """Compare each with a cold run, and the bytes with what is held, after every tick.

        Raises:
            ColdRunDiffersError: with the seed.
        """
        try:
            self._run()
        except Exception as error:
            raise ColdRunDiffersError(f"seed {self.seed}: {error!r}") from error

    def _run(self) -> None:
        dice = self.dice = random.Random(self.seed)
        kept = PrefixSettings(max_bytes=dice.choice([3, 8, 30]) * BLOCK_TOKENS * self.loaded.token_bytes)
        settings = TextSettings(dice.randint(1, 3), prefill_chunk_tokens=dice.choice([20, 64, 512]), prefixes=kept)
        driven = Driven(self.loaded, settings)
        requests = [self.wanted(str(number)) for number in range(8)]
        for each in requests:
            driven.admit(each)
            for _ in range(dice.choice([0, 3, 50])):
                driven.tick_once()
                check_bytes(driven)
        driven.finish()
        check_bytes(driven)
        for each in requests:
            cold = Driven(self.loaded, TextSettings(1, prefixes=PrefixSettings(max_bytes=0))).generate(each)
            assert details_of(driven.events[each.key]) == details_of(cold), each.key
        counts = driven.workload.counts()
        self.num_found, self.num_evicted = counts.cached_prompt_tokens_total, counts.evictions_total
        driven.assert_nothing_is_held()

    def wanted(self, key: str) -> TextRequest:
        dice = self.dice
        # Few different blocks, so that many prompts begin alike; the last one is cut.
        blocks = [range(start, start + BLOCK_TOKENS) for start in dice.choices([0, 50], k=dice.randint(0, 4))]
        tail = [dice.randrange(256) for _ in range(dice.randint(1, 40))]
        prompt = (*(token for block in blocks for token in block), *tail)
        use = CacheUse(is_bypassed=dice.random() < 0.1, namespace=dice.choice(["", "", "", "b"]))
        sampling = dice.choice([SamplingSettings(temperature=0.0), SamplingSettings(seed=dice.randrange(99))])
        return wanted(prompt, key, cache=use, sampling=sampling, max_tokens=dice.choice([1, 5, 40]))


def check_bytes(driven: Driven) -> None:
    """Assert that the count of bytes is exact: what every part holds, and all blocks that are held."""
    known = driven.workload._ready.prefixes._known
    assert known is not None
    held = driven.workload._ready.prefixes._held.values()
    parts = [*(node.part for node in known._line), *(part for each in held for part in each.parts)]
    assert known.nbytes == sum(part.nbytes for part in parts) <= known._max_bytes
    cache = driven.cache
    if isinstance(cache, PagedCache):
        groups = driven.workload._groups.values()
        shared = [part for group in groups for part in group.shared]
        for number, group in enumerate(cache.groups):
            in_rows = {block for table in group.tables for block in table} - {NO_BLOCK}
            in_parts = {places_of(part)[number] for part in [*parts, *shared]} - {NO_BLOCK}
            assert group.blocks.num_held == len(in_rows | in_parts), "a block is held by nobody"


def places_of(part: object) -> tuple[int, ...]:
    assert isinstance(part, PagedPart)
    return part.places


@pytest.mark.parametrize("kind", ["plain", "window", "8", "rows"])
def test_any_history_says_what_cold_runs_say(models: Models, kind: str):
    num_found = num_evicted = 0
    for seed in range(20 if kind in {"plain", "window"} else 5):
        history = History(seed, models(kind))
        history.run()
        num_found, num_evicted = num_found + history.num_found, num_evicted + history.num_evicted
    assert num_found > 300
    assert num_evicted > 0


class IgnoresNamespacesAndTokens(Prefixes):
    """Finds the blocks of the prompt that came first."""

    def find(self, row: Row) -> list[Part] | None:
        known = self._known
        assert known is not None
        return [node.part for node in list(known._line)[: len(row.sequence.request.prompt_ids) // BLOCK_TOKENS]]


class KeepsOnePartTwice(Prefixes):
    def adopt(self, row: Row, parts: Items[Part]) -> int:
        self._cache.share(row.slot)
        num_tokens = super().adopt(row, parts)
        self._cache.share(row.slot)
        return num_tokens


@pytest.mark.parametrize("defective", [IgnoresNamespacesAndTokens, KeepsOnePartTwice])
def test_the_histories_catch_a_defect(loaded: LoadedModel, defective: type[Prefixes], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loaded_text, "Prefixes", defective)

    def run_all() -> None:
        for seed in range(40):
            History(seed, loaded).run()

    with pytest.raises(ColdRunDiffersError, match=r"seed \d+"):
        run_all()


# Layers that see a window (reported of mlx-vlm as 1748, of mlx-lm as 980 and 1109).


@pytest.mark.parametrize("kind", ["plain", "rows"])
@pytest.mark.parametrize("windows", [(8, 8), (8, None), (None, 8)], ids=str)
@pytest.mark.parametrize("num_tokens", [20, 75, 130])
def test_behind_a_window_a_prompt_is_what_it_is_cold(
    models: Models, kind: str, windows: tuple[int | None, ...], num_tokens: int
):
    loaded = windowed(models(kind), *windows)
    prompt = tuple(range(num_tokens))
    driven = Driven(loaded)
    driven.generate(wanted(prompt))
    for shared in (15, 40, 64, 70, 97, num_tokens):
        other = (*prompt[:shared], *range(200, 210))
        found = driven.generate(wanted(other, max_draft_tokens=4))
        assert details_of(found) == details_of(Driven(loaded).generate(wanted(other, cache=BYPASS)))
        assert cached(found) <= shared
    driven.assert_nothing_is_held()


@pytest.mark.parametrize("kind", ["plain", "rows"])
def test_a_window_is_reused_where_its_tokens_are_there(models: Models, kind: str):
    driven = Driven(windowed(models(kind), WINDOW, None))
    driven.generate(wanted())
    assert cached(driven.generate(wanted((*PROMPT, 1, 2, 3)))) == 96


# A folder that outlives the process.


def settings(folder: Path) -> TextSettings:
    return TextSettings(prefixes=PrefixSettings(max_bytes=1 << 20, folder=folder / "prefixes"))


@pytest.mark.parametrize("kind", ["plain", "window", "8", "4:g32:s64", "turbo", "rows"])
def test_after_a_restart_a_prompt_is_found_on_disk(models: Models, kind: str, tmp_path: Path):
    loaded = models(kind)
    first = Driven(loaded, settings(tmp_path))
    expected = first.generate(wanted())
    first.assert_nothing_is_held()
    second = Driven(loaded, settings(tmp_path))
    found = second.generate(wanted())
    assert cached(found) == 96
    assert details_of(found) == details_of(expected)
    second.assert_nothing_is_held()


def test_what_is_left_to_write_is_written_in_idle_moments(
    loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(prefix_cache, "MAX_WRITE_BYTES", 1)  # a block a call
    driven = Driven(loaded, settings(tmp_path))
    driven.generate(wanted(tuple(range(200)), max_tokens=1))
    store = driven.workload._ready.prefixes._store
    assert store is not None
    assert store.drain(5)
    assert 0 < store.counters.num_written < 6
    while driven.tick_once():
        assert driven.plans[-1].keys == ()
    assert store.drain(5)
    assert store.counters.num_written == 6
    driven.assert_nothing_is_held()


def test_what_is_left_to_write_is_written_at_the_end(
    loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(prefix_cache, "MAX_WRITE_BYTES", 1)
    driven = Driven(loaded, settings(tmp_path))
    driven.generate(wanted(max_tokens=1))
    driven.workload.close()
    assert cached(Driven(loaded, settings(tmp_path)).generate(wanted())) == 96


def test_another_model_finds_nothing_on_disk(models: Models, tmp_path: Path):
    first = Driven(models("plain"), settings(tmp_path))
    first.generate(wanted())
    first.workload.close()
    others = [models("rows"), models("window"), models("8"), tiny(tmp_path / "other weights", seed=1)]
    for other in others:
        driven = Driven(other, settings(tmp_path))
        assert cached(driven.generate(wanted())) == 0
        driven.workload.close()


def test_a_damaged_block_is_computed_again(loaded: LoadedModel, tmp_path: Path):
    first = Driven(loaded, settings(tmp_path))
    expected = first.generate(wanted())
    first.workload.close()
    files = [path for path in (tmp_path / "prefixes").rglob("*") if path.is_file() and path.stat().st_size > 1000]
    assert len(files) == 3
    for path in files:
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    second = Driven(loaded, settings(tmp_path))
    found = second.generate(wanted())
    assert cached(found) == 0
    assert details_of(found) == details_of(expected)
