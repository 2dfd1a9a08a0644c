"""What callers choose for models is written as it changes, and holds again after a start."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog

from gateway import state_file
from gateway.changes import Changes, Watch
from gateway.desired_adapters import DesiredAdapter, DesiredAdapters
from gateway.desired_state import DesiredState
from gateway.model_status import Keeping, LoadOptions, ModelStatus
from gateway.state_file import DesiredModel, StateFile, StateInUse
from tests.support.waiting import eventually

OPTIONS = LoadOptions(context_tokens=100)


class Pool:
    """Models with what was chosen for them."""

    def __init__(self, *models: str) -> None:
        self.statuses = {model: ModelStatus(model) for model in models}
        self.changes = Changes(self.state)
        self.is_running = False

    def state(self, model: str) -> ModelStatus:
        return self.statuses.get(model, ModelStatus(model, is_removed=True))

    def watch(self) -> Watch:
        return self.changes.watch()

    def choose(self, model: str, **chosen: Any) -> None:
        self.statuses[model] = replace(self.statuses.get(model, ModelStatus(model)), **chosen)
        self.changes.tell(model)

    def remove(self, model: str) -> None:
        del self.statuses[model]
        self.changes.tell(model)

    def restore(self, model: str, options: LoadOptions, keeping: Keeping) -> bool:
        if self.is_running:
            return False
        self.choose(model, options=options, keeping=keeping)
        return True


class Server:
    """What one server keeps, in a file at `path`."""

    def __init__(self, path: Path, *models: str) -> None:
        self.path = path
        self.pool = Pool(*models)
        self.adapters = DesiredAdapters()
        self.logged = structlog.testing.LogCapture()
        log = structlog.wrap_logger(None, processors=[self.logged])
        self.state = DesiredState(lambda: StateFile(path), self.pool, self.adapters, log)

    async def begin(self) -> None:
        await self.state.begin()
        self.tasks = [asyncio.create_task(self.state.follow()), asyncio.create_task(self.state.keep())]
        await asyncio.sleep(0)

    async def end(self) -> None:
        await self.state.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)

    def kept(self) -> dict[str, DesiredModel]:
        return StateFile.read(self.state._file) if self.state._file is not None else {}


@contextlib.asynccontextmanager
async def server(path: Path, *models: str) -> AsyncGenerator[Server]:
    one = Server(path, *models)
    await one.begin()
    try:
        yield one
    finally:
        await one.end()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.json"


async def test_what_was_chosen_holds_after_the_next_start(path: Path) -> None:
    adapter = DesiredAdapter("formal", pinned=True)
    async with server(path, "a", "b") as first:
        first.pool.choose("a", options=OPTIONS, keeping=Keeping(pinned=True, idle_ttl_s=3))
        first.adapters.load("b", adapter)
        first.adapters.unload("b", "terse")
    async with server(path, "a", "b") as second:
        status = second.pool.state("a")
        assert (status.options, status.keeping) == (OPTIONS, Keeping(pinned=True, idle_ttl_s=3))
        assert second.adapters.asked("b") == {"formal": adapter, "terse": None}


async def test_a_change_is_on_disk_soon_without_an_end_of_the_server(path: Path) -> None:
    async with server(path, "a") as one:
        one.pool.choose("a", options=OPTIONS)
        await eventually(lambda: one.kept() == {"a": DesiredModel(OPTIONS)})
        one.pool.choose("a", options=LoadOptions())
        await eventually(lambda: one.kept() == {})


async def test_whoever_settles_finds_it_written(path: Path) -> None:
    async with server(path, "a") as one:
        one.adapters.load("a", DesiredAdapter("formal"))
        await one.adapters.settle()
        assert one.kept()["a"].adapters == {"formal": DesiredAdapter("formal")}


async def test_a_choice_that_nobody_has_read_yet_is_written_too(path: Path) -> None:
    async with server(path, "a") as one:
        one.pool.choose("a", options=OPTIONS)
        await one.state.settle()
        assert one.kept() == {"a": DesiredModel(OPTIONS)}


async def test_what_is_forgotten_while_the_server_stops_is_kept(path: Path) -> None:
    one = Server(path, "a")
    await one.begin()
    one.pool.choose("a", options=OPTIONS)
    await one.state.close()
    one.pool.choose("a", options=LoadOptions())
    for task in one.tasks:
        task.cancel()
    async with server(path, "a") as second:
        assert second.pool.state("a").options == OPTIONS


async def test_a_model_that_is_removed_is_forgotten(path: Path) -> None:
    async with server(path, "a") as one:
        one.pool.choose("a", options=OPTIONS)
        await eventually(lambda: "a" in one.kept())
        one.pool.remove("a")
        await eventually(lambda: one.kept() == {})


async def test_a_model_that_is_not_there_at_the_start_waits_for_its_choice(path: Path) -> None:
    async with server(path, "a") as first:
        first.pool.choose("a", options=OPTIONS)
    async with server(path, "b") as second:
        second.pool.choose("b", options=LoadOptions(max_batch_rows=2))
        await eventually(lambda: set(second.kept()) == {"a", "b"})
        second.pool.choose("a")
        await eventually(lambda: second.pool.state("a").options == OPTIONS)


async def test_a_choice_of_now_goes_before_one_of_then(path: Path) -> None:
    async with server(path, "a") as first:
        first.pool.choose("a", options=OPTIONS)
    async with server(path) as second:
        second.pool.is_running = True
        second.pool.choose("a", options=LoadOptions(max_batch_rows=2))
        await eventually(lambda: second.kept() == {"a": DesiredModel(LoadOptions(max_batch_rows=2))})


@pytest.fixture
def broken(path: Path) -> Path:
    path.write_text("{")
    return path


async def test_a_broken_file_is_said_and_the_server_starts(broken: Path) -> None:
    async with server(broken, "a") as one:
        assert one.logged.entries[0]["event"] == "state put aside: its file is broken"
        one.pool.choose("a", options=OPTIONS)
        await eventually(lambda: "a" in one.kept())


async def test_a_place_that_cannot_be_had_is_said_and_the_server_starts(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    async with server(tmp_path / "file" / "state.json", "a") as one:
        assert one.logged.entries[0]["event"] == "what callers choose is not kept"
        one.pool.choose("a", options=OPTIONS)
        await asyncio.wait_for(one.adapters.settle(), 1.0)


async def test_a_disk_that_is_full_is_said_once_and_tried_again(path: Path) -> None:
    async with server(path, "a") as one:
        path.with_suffix(".new").mkdir()
        for rows in (1, 2):
            one.pool.choose("a", options=LoadOptions(max_batch_rows=rows))
            await one.state.settle()
            await eventually(lambda: bool(one.logged.entries))
        path.with_suffix(".new").rmdir()
        one.pool.choose("a", options=OPTIONS)
        await eventually(lambda: one.kept() == {"a": DesiredModel(OPTIONS)})
        assert [entry["event"] for entry in one.logged.entries] == ["what callers choose is not written"]


@pytest.mark.parametrize("harm", ["what no caller can choose", "too much"])
async def test_what_cannot_be_written_keeps_nothing_else_from_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    async with server(path, "a") as one:
        with monkeypatch.context() as broken:
            if harm == "too much":
                broken.setattr(state_file, "MAX_BYTES", 10)
            one.pool.choose("a", options=LoadOptions(max_batch_rows=1 << 20) if harm != "too much" else OPTIONS)
            await eventually(lambda: bool(one.logged.entries))
            await asyncio.wait_for(one.state.settle(), 1.0)
        one.pool.choose("a", options=LoadOptions(max_batch_rows=2))
        await eventually(lambda: one.kept() == {"a": DesiredModel(LoadOptions(max_batch_rows=2))})
        assert [entry["event"] for entry in one.logged.entries] == ["what callers choose is not written"]


async def test_a_server_ends_although_its_state_cannot_be_written(path: Path) -> None:
    async with server(path, "a") as one:
        one.pool.choose("a", options=LoadOptions(max_batch_rows=1 << 20))


async def test_two_servers_do_not_share_a_file(path: Path) -> None:
    async with server(path, "a"):
        with pytest.raises(StateInUse):
            await Server(path, "a").state.begin()
