"""The catalogue follows the settings and the hub's cache."""

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import ModelNotFound
from gateway.inventory import Differences, Inventory, Sources
from gateway.logs import LogRing, make_log
from gateway.model_status import ModelState, ModelStatus
from gateway.request_errors import InvalidField
from gateway.settings import Settings, SettingsError, load_settings
from tests.gateway.hub.test_cache import write
from tests.support.scripted_worker import ScriptedPool, catalogue
from tests.support.waiting import eventually


def settings(*names: str, **changed: Any) -> Settings:
    return load_settings(None, {"models": [{"name": name, "checkpoint": f"/x/{name}"} for name in names], **changed})


class Shop:
    """An inventory over a scripted pool; `reloaded` is what the settings are read as."""

    def __init__(self, cache: Path, first: Settings) -> None:
        self.reloaded: Settings | Exception = first
        self.pool = ScriptedPool()
        self.ring = LogRing(100)
        log = make_log(self.ring, "info", "json", io.StringIO())
        sources = Sources(first, cache, self.reload)
        found = sources.find()
        self.catalogue = catalogue(*found.models.values()) if found.models else catalogue()
        self.catalogue.replace(found.models.values())
        self.inventory = Inventory(found, sources, self.catalogue, self.pool, log)

    def reload(self) -> Settings:
        if isinstance(self.reloaded, Exception):
            raise self.reloaded
        return self.reloaded

    @property
    def names(self) -> list[str]:
        return [model.name for model in self.catalogue.models]


async def test_models_come_change_and_go(tmp_path: Path) -> None:
    shop = Shop(tmp_path, settings("a", "b"))
    watch = shop.pool.watch()
    seen = asyncio.ensure_future(anext(watch))
    await asyncio.sleep(0)
    shop.reloaded = settings("b", "c")
    shop.reloaded = shop.reloaded.model_copy(
        update={"models": (shop.reloaded.models[0].model_copy(update={"context_tokens": 99}), shop.reloaded.models[1])}
    )
    write(tmp_path)
    assert await shop.inventory.refresh() == Differences(added=("c", "org/m"), removed=("a",), changed=("b",))
    assert shop.names == ["b", "c", "org/m"]
    assert shop.catalogue.resolve("b").context_tokens == 99
    with pytest.raises(ModelNotFound):
        shop.catalogue.resolve("a")
    assert (await seen).is_removed
    assert await shop.inventory.refresh() == Differences()


async def test_a_loaded_model_that_is_gone_stays_until_it_is_unloaded(tmp_path: Path) -> None:
    shop = Shop(tmp_path, settings("a", "b"))
    shop.pool.statuses["a"] = ModelStatus("a", ModelState.ACTIVE)
    follower = asyncio.create_task(shop.inventory.follow())
    await asyncio.sleep(0)
    shop.reloaded = settings("b")
    assert (await shop.inventory.refresh()).removed == ("a",)
    assert shop.names == ["a", "b"]
    assert await shop.inventory.refresh() == Differences()
    shop.pool.set(ModelStatus("a", ModelState.DRAINING))
    shop.pool.set(ModelStatus("a"))
    await eventually(lambda: shop.names == ["b"])
    follower.cancel()


async def test_a_model_that_comes_back_while_it_is_leaving_is_there_again(tmp_path: Path) -> None:
    shop = Shop(tmp_path, settings("a"))
    shop.pool.statuses["a"] = ModelStatus("a", ModelState.ACTIVE)
    shop.reloaded = settings()
    await shop.inventory.refresh()
    shop.reloaded = settings("a")
    assert await shop.inventory.refresh() == Differences(added=("a",))
    shop.pool.set(ModelStatus("a"))
    assert shop.names == ["a"]


async def test_an_alias_does_not_take_the_name_of_a_model_that_is_leaving(tmp_path: Path) -> None:
    shop = Shop(tmp_path, settings("a"))
    shop.pool.statuses["a"] = ModelStatus("a", ModelState.ACTIVE)
    models = [{"name": "b", "checkpoint": "/x/b", "aliases": ["a", "c"]}]
    shop.reloaded = load_settings(None, {"models": models})
    await shop.inventory.refresh()
    assert (shop.catalogue.resolve("a").name, shop.catalogue.resolve("c").name) == ("a", "b")


@pytest.mark.parametrize(
    "broken", [SettingsError("/etc/pomona.toml: it cannot be read"), settings("a", "a"), settings("a b")]
)
async def test_settings_that_are_wrong_change_nothing_and_are_told_in_the_log(
    tmp_path: Path, broken: Settings | Exception
) -> None:
    shop = Shop(tmp_path, settings("a"))
    shop.reloaded = broken
    with pytest.raises(InvalidField) as caught:
        await shop.inventory.refresh()
    assert "/etc" not in str(caught.value)
    assert shop.names == ["a"]
    assert shop.ring.past(1)[0].event == "settings not read again"
    assert await shop.inventory.refresh(with_settings=False) == Differences()


async def test_a_name_of_the_settings_goes_before_a_repository(tmp_path: Path) -> None:
    write(tmp_path)
    shop = Shop(tmp_path, settings("org/m"))
    assert shop.catalogue.resolve("org/m").checkpoint == Path("/x/org/m")
    assert shop.inventory.cached("org/m") is None


async def test_the_cache_may_be_left_out(tmp_path: Path) -> None:
    write(tmp_path)
    assert Shop(tmp_path, settings("a", hub_models=False)).names == ["a"]


async def test_of_two_refreshes_the_one_that_began_later_wins(tmp_path: Path) -> None:
    shop = Shop(tmp_path, settings("a"))
    reads = 0
    may_end = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow_then_fast() -> Settings:
        nonlocal reads
        reads += 1
        if reads == 1:
            asyncio.run_coroutine_threadsafe(may_end.wait(), loop).result(10)
            return settings("old")
        return settings("new")

    shop.inventory = Inventory(
        Sources(settings("a"), tmp_path, slow_then_fast).find(),
        Sources(settings("a"), tmp_path, slow_then_fast),
        shop.catalogue,
        shop.pool,
        make_log(shop.ring, "info", "json", io.StringIO()),
    )
    first = asyncio.create_task(shop.inventory.refresh())
    await eventually(lambda: reads == 1)
    await shop.inventory.refresh()
    may_end.set()
    assert await first == Differences()
    assert shop.names == ["new"]
