"""The prefix cache beside the cache that its parts belong to; what an engine makes of both is tested with workloads."""

from dataclasses import replace
from pathlib import Path

import pytest

from models.blocks import BLOCK_TOKENS
from models.layers.cache import Cache
from models.registry import LoadedModel
from tests.models.stepping import step_logits
from tests.worker.text_engines import request
from tests.worker.text_models import Models
from tests.worker.text_rows import row as row_of
from worker import prefix_cache
from worker.prefixes import Prefixes, PrefixSettings
from worker.row import Row
from worker.sequence import CacheUse, TextRequest

PROMPT = tuple(range(200))
BIG = PrefixSettings(max_bytes=1 << 20)


def row(cache: Cache, wanted: TextRequest, slot: int) -> Row:
    """Return a row whose last token was drawn behind all that its slot holds."""
    subject = row_of(cache, wanted, slot)
    subject.was_drawn = True
    return subject


def known(loaded: LoadedModel, settings: PrefixSettings = BIG, num_tokens: int = 200) -> tuple[Prefixes, Cache]:
    """Return what knows the first tokens of the prompt, and an empty cache of three slots."""
    cache = loaded.make_cache(3)
    prefixes = Prefixes(settings, cache, loaded)
    first = computed(loaded, cache, num_tokens)
    prefixes.publish(first)
    cache.release(0)
    return prefixes, cache


def computed(loaded: LoadedModel, cache: Cache, num_tokens: int) -> Row:
    step_logits(loaded, cache, PROMPT[:num_tokens])
    return row(cache, request(prompt=PROMPT[:num_tokens]), 0)


def found(prefixes: Prefixes, subject: Row) -> int:
    """Let a row begin behind what is known; return how many tokens that is."""
    parts = prefixes.find(subject)
    assert parts is not None
    return prefixes.adopt(subject, parts)


@pytest.mark.parametrize(("num_tokens", "num_found"), [(1, 0), (32, 0), (33, 32), (64, 32), (100, 96), (200, 192)])
def test_a_row_begins_behind_whole_blocks_and_never_behind_all_of_its_prompt(
    loaded: LoadedModel, num_tokens: int, num_found: int
):
    prefixes, cache = known(loaded)
    subject = row(cache, request(prompt=PROMPT[:num_tokens]), 1)
    assert found(prefixes, subject) == cache.length(1) == num_found
    assert subject.num_published == num_found // BLOCK_TOKENS


def test_blocks_are_published_once_each(loaded: LoadedModel):
    cache = loaded.make_cache(1)
    prefixes = Prefixes(BIG, cache, loaded)
    subject = row(cache, request(prompt=PROMPT), 0)
    for start, num_blocks in ((0, 1), (40, 2), (80, 3), (120, 5)):
        step_logits(loaded, cache, PROMPT[start : start + 40])
        prefixes.publish(subject)
        prefixes.publish(subject)
        assert subject.num_published == num_blocks
        assert prefixes.nbytes == num_blocks * BLOCK_TOKENS * loaded.token_bytes
    cache.release(0)
    assert cache.nbytes == prefixes.nbytes
    prefixes.close()
    assert (cache.nbytes, prefixes.nbytes) == (0, 0)


def test_blocks_in_memory_keep_to_their_cap(loaded: LoadedModel):
    bounded = PrefixSettings(max_bytes=2 * BLOCK_TOKENS * loaded.token_bytes)
    prefixes, cache = known(loaded, bounded)
    assert prefixes.nbytes == cache.nbytes == bounded.max_bytes
    assert found(prefixes, row(cache, request(prompt=PROMPT), 1)) == 64


def test_evictions_are_counted(loaded: LoadedModel):
    prefixes, cache = known(loaded, PrefixSettings(max_bytes=6 * BLOCK_TOKENS * loaded.token_bytes))
    other = tuple(reversed(PROMPT))
    step_logits(loaded, cache, other[:70])
    prefixes.publish(row(cache, request(prompt=other[:70]), 0))
    assert prefixes.evictions_total == 2


@pytest.mark.parametrize("use", [CacheUse(is_bypassed=True), CacheUse(namespace="other")], ids=["bypass", "namespace"])
def test_what_is_not_for_a_row_is_not_found(loaded: LoadedModel, use: CacheUse):
    prefixes, cache = known(loaded)
    assert found(prefixes, row(cache, request(prompt=PROMPT, cache=use), 1)) == 0


def test_who_bypasses_publishes_nothing(loaded: LoadedModel):
    cache = loaded.make_cache(1)
    prefixes = Prefixes(BIG, cache, loaded)
    step_logits(loaded, cache, PROMPT)
    prefixes.publish(row(cache, request(prompt=PROMPT, cache=CacheUse(is_bypassed=True)), 0))
    assert prefixes.nbytes == 0


def test_no_room_keeps_nothing(loaded: LoadedModel, tmp_path: Path):
    prefixes, cache = known(loaded, PrefixSettings(max_bytes=0, folder=tmp_path / "prefixes"))
    assert (prefixes.nbytes, cache.nbytes, prefixes.evictions_total) == (0, 0, 0)
    assert not (tmp_path / "prefixes").exists()
    assert found(prefixes, row(cache, request(prompt=PROMPT), 1)) == 0
    prefixes.close()


def test_a_long_prompt_on_disk_is_read_in_several_ticks(
    loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    settings = replace(BIG, folder=tmp_path / "prefixes")
    known(loaded, settings)[0].close()
    block_bytes = BLOCK_TOKENS * loaded.token_bytes
    monkeypatch.setattr(prefix_cache.PrefixCache.__init__, "__kwdefaults__", _reading(2 * block_bytes))
    cache = loaded.make_cache(1)
    prefixes = Prefixes(settings, cache, loaded)
    subject = row(cache, request(prompt=PROMPT), 0)
    assert [prefixes.find(subject), prefixes.find(subject)] == [None, None]
    assert subject.num_reached == 4
    assert found(prefixes, subject) == 192
    prefixes.close()


def _reading(max_bytes: int) -> dict[str, object]:
    defaults = prefix_cache.PrefixCache.__init__.__kwdefaults__
    assert defaults is not None
    return {**defaults, "max_read_bytes": max_bytes}


@pytest.mark.parametrize("other", ["rows", "8", "window"])
def test_models_that_compute_other_numbers_read_none_of_these(models: Models, tmp_path: Path, other: str):
    settings = replace(BIG, folder=tmp_path / "prefixes")
    known(models("plain"), settings)[0].close()
    for kind, num_found in ((other, 0), ("plain", 192)):
        cache = models(kind).make_cache(1)
        prefixes = Prefixes(settings, cache, models(kind))
        assert found(prefixes, row(cache, request(prompt=PROMPT), 0)) == num_found
        prefixes.close()


def test_nothing_is_published_behind_a_forced_token(loaded: LoadedModel):
    cache = loaded.make_cache(1)
    prefixes, subject = Prefixes(BIG, cache, loaded), computed(loaded, cache, 70)
    subject.was_drawn = False
    prefixes.publish(subject)
    assert subject.num_published == 0
    subject.was_drawn = True
    prefixes.publish(subject)
    assert subject.num_published == 2
