import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

from gateway.catalogue import CatalogueModel
from gateway.desired_adapters import MAX_ASKED, MAX_TOLD_BYTES, DesiredAdapter, DesiredAdapters, latest
from gateway.model_status import ModelStatus
from gateway.process import MAX_SETTINGS_BYTES
from tests.support.waiting import eventually

MODEL = CatalogueModel(
    "m", Path("/m"), adapters=(DesiredAdapter("a"), DesiredAdapter("b", "org/b", pinned=True, revision="r1"))
)


def names(desired: DesiredAdapters) -> list[str]:
    return list(desired.of(MODEL))


def test_those_of_the_settings_are_wanted_pinned_ones_first() -> None:
    assert names(DesiredAdapters()) == ["b", "a"]


def test_what_was_loaded_comes_last_but_for_pinned_ones() -> None:
    desired = DesiredAdapters()
    desired.load("m", DesiredAdapter("c"))
    desired.load("m", DesiredAdapter("d", pinned=True))
    desired.load("m", DesiredAdapter("a", revision="r2"))
    assert names(desired) == ["b", "d", "c", "a"]
    assert desired.of(MODEL)["a"].revision == "r2"


def test_what_was_unloaded_is_not_wanted_though_the_settings_say_so() -> None:
    desired = DesiredAdapters()
    desired.load("m", DesiredAdapter("c"))
    desired.unload("m", "c")
    desired.unload("m", "a")
    assert names(desired) == ["b"]
    desired.load("m", DesiredAdapter("a"))
    assert names(desired) == ["b", "a"]


def test_models_do_not_mix() -> None:
    desired = DesiredAdapters()
    desired.load("other", DesiredAdapter("c"))
    desired.unload("other", "a")
    assert names(desired) == ["b", "a"]


def test_a_worker_is_told_of_as_many_as_it_can_be_told_of() -> None:
    desired = DesiredAdapters()
    for number in range(200):
        desired.load("m", DesiredAdapter(f"{number}-{'n' * 100}", pinned=number == 3, revision="0" * 64))
    wanted = latest(list(desired.of(MODEL).values()))
    names_told = [one.adapter for one in wanted]
    assert names_told[:2] == ["b", f"3-{'n' * 100}"]
    assert [name.partition("-")[0] for name in names_told[2:]] == [str(n) for n in range(202 - len(wanted), 200)]
    told = len(json.dumps([dict(one.told()) for one in wanted]))
    assert MAX_TOLD_BYTES - 250 < told <= MAX_TOLD_BYTES < MAX_SETTINGS_BYTES
    for number in range(200):
        desired.load("m", DesiredAdapter(f"{number}-{'n' * 100}", pinned=True, revision="0" * 64))
    wanted = latest(list(desired.of(MODEL).values()))
    assert wanted[-1].adapter == f"199-{'n' * 100}"
    assert all(one.pinned for one in wanted)


async def test_a_model_that_goes_takes_what_was_asked_with_it() -> None:
    async def changes() -> AsyncIterator[ModelStatus]:
        yield ModelStatus("other", is_removed=True)
        yield ModelStatus("m")
        await asyncio.Event().wait()

    desired = DesiredAdapters()
    for model in ("m", "other"):
        desired.load(model, DesiredAdapter("c"))
    following = asyncio.create_task(desired.follow(changes()))
    other = CatalogueModel("other", Path("/other"))
    await eventually(lambda: not desired.of(other))
    assert names(desired) == ["b", "a", "c"]
    following.cancel()


def test_a_worker_is_told_what_is_set() -> None:
    assert [one.told() for one in MODEL.adapters] == [
        {"adapter": "a", "pinned": False},
        {"adapter": "b", "source": "org/b", "pinned": True, "revision": "r1"},
    ]


def test_however_many_names_callers_think_of_few_are_kept() -> None:
    desired = DesiredAdapters()
    desired.unload("m", "a")
    desired.load("m", DesiredAdapter("kept", pinned=True))
    for number in range(2 * MAX_ASKED):
        desired.load("m", DesiredAdapter(f"n{number}", "c"))
    asked = desired.asked("m")
    assert len(asked) == MAX_ASKED
    assert list(asked)[:3] == ["a", "kept", f"n{MAX_ASKED + 2}"]
    for number in range(2 * MAX_ASKED):
        desired.unload("m", f"u{number}")
    assert len(desired.asked("m")) == MAX_ASKED
