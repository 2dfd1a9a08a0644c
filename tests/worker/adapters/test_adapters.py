"""Adapters mounted, replaced, unloaded and evicted while requests run."""

import asyncio
import random
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from native import kernels
from tests.support.tiny_adapters import write_adapter
from tests.worker.adapters.stage import ONE_BYTES, Stage, settled, staged
from tests.worker.text_engines import drain, submit, tokens_of
from worker.adapters.adapters import LoadWish
from worker.adapters.mounts import MountState
from worker.adapters.wanted import WantedAdapter
from worker.errors import (
    AdapterCapacity,
    AdapterConflict,
    AdapterIncompatible,
    AdapterInUse,
    AdapterNotFound,
    ModelUnloading,
    UnsupportedOption,
    WorkerError,
)
from worker.events import Failed

PROMPT = tuple(int(token) for token in np.random.default_rng(3).integers(0, 256, 40))
LONG = tuple(int(token) for token in np.random.default_rng(4).integers(0, 256, 130))
pytestmark = pytest.mark.skipif(not kernels.is_available(), reason="built without the native extension")


async def test_each_request_gets_its_own(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        base, _ = await stage.generate(PROMPT)
        stage.write("a", 1)
        stage.write("org/b", 2)
        await stage.load("a")
        await stage.load("org/b")
        a, b = [await stage.generate(PROMPT, name) for name in ("a", "org/b")]
        both = await stage.generate(PROMPT, "a", "org/b")
        half = await stage.generate(PROMPT, WantedAdapter("a", 0.5))
        said = [base, a[0], b[0], both[0], half[0]]
        assert len({tuple(each) for each in said}) == 5
        # All at once, and the base again.
        wanted = [(), ("a",), ("org/b",), ("a", "org/b"), (WantedAdapter("a", 0.5),), ()]
        together = await asyncio.gather(*(stage.generate(PROMPT, *each) for each in wanted))
        assert [tokens for tokens, _ in together] == [*said, base]


async def test_what_is_kept_of_prompts_is_not_shared_across_adapters_revisions_and_scales(tmp_path: Path) -> None:
    """Case 13."""
    async with staged(tmp_path) as stage:
        stage.write("a", 1)
        stage.write("b", 2)
        first, second = await stage.load("a"), await stage.load("b")
        asks: list[tuple[WantedAdapter | str, ...]] = [
            ("a",),
            ("b",),
            (),
            (WantedAdapter("a", 0.5),),
            ("a", "b"),
            ("b", "a"),
        ]
        cold = [await stage.generate(LONG, *each) for each in asks]
        assert [usage.cached_prompt_tokens for _, usage in cold] == [0] * len(asks)
        warm = [await stage.generate(LONG, *each) for each in asks]
        assert [usage.cached_prompt_tokens for _, usage in warm] == [128] * len(asks)
        assert [tokens for tokens, _ in warm] == [tokens for tokens, _ in cold]

        stage.write("a", 7)
        third = await stage.load("a", replace=True)
        assert len({first, second, third}) == 3
        anew, usage = await stage.generate(LONG, "a")
        assert (usage.cached_prompt_tokens, anew == cold[0][0]) == (0, False)
        stage.write("a", 1)
        assert await stage.load("a", replace=True) == first
        again, usage = await stage.generate(LONG, "a")
        assert (again, usage.cached_prompt_tokens) == (cold[0][0], 128)


async def test_the_same_content_is_there_already_and_other_content_is_a_conflict(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        stage.write("a", 1)
        stage.write("twin", 1)
        mount, was_there = await stage.adapters.load(LoadWish("a"))
        assert not was_there
        assert await stage.adapters.load(LoadWish("a", source="twin", pinned=True)) == (mount, True)
        assert (mount.pinned, mount.source) == (True, "twin")
        stage.write("a", 2)
        with pytest.raises(AdapterConflict):
            await stage.load("a")
        assert stage.adapters.mounts.all() == [mount]
        assert await stage.load("a", replace=True) != mount.revision


async def test_what_is_not_there_is_told_with_what_is(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        stage.write("a", 1)
        stage.write("b", 2)
        await stage.load("a")
        with pytest.raises(AdapterNotFound) as refused:
            await stage.generate(PROMPT, "b")
        assert refused.value.metadata == {"adapter": "b", "available": "a"}
        for name in ("c", "../a", "/etc", "a/../b"):
            with pytest.raises(AdapterNotFound) as refused:
                await stage.load(name)
            assert refused.value.metadata == {"adapter": name, "available": "a, b"}
        with pytest.raises(AdapterNotFound):
            await stage.adapters.unload("b", 1)


async def test_numbers_that_overflow_end_their_request_alone_and_are_told_by_the_adapters_name(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        stage.write("a", 1)
        stage.write("vast", 2, size=1e15, scale=1e20)
        for name in ("a", "vast"):
            await stage.load(name)
        expected = await stage.generate(PROMPT, "a", max_tokens=30)
        beside = asyncio.create_task(stage.generate(PROMPT, "a", max_tokens=30))
        with await stage.adapters.lease([WantedAdapter("vast")]) as lease:
            asked = replace(stage.request(PROMPT, lease.uses, lease.namespace), adapter_names=lease.names)
            last = (await drain(submit(stage.engine, asked)))[-1]
        assert isinstance(last, Failed)
        assert isinstance(last.error, AdapterIncompatible)
        assert (last.error.metadata, "overflows" in last.error.message) == ({"adapter": "vast"}, True)
        assert (await beside)[0] == expected[0]


async def test_one_that_does_not_fit_fails_alone(tmp_path: Path) -> None:
    """Case 15, the first half."""
    async with staged(tmp_path) as stage:
        for seed, name in enumerate("ab"):
            stage.write(name, seed)
            await stage.load(name)
        write_adapter(stage.store / "bad", {"lora_typo": np.ones((4, 4), np.float32)}, {"r": 4})
        expected = [await stage.generate(PROMPT, name, max_tokens=60) for name in "ab"]
        nbytes = stage.bank.nbytes
        asked = [asyncio.create_task(stage.generate(PROMPT, name, max_tokens=60)) for name in "ab"]
        await asyncio.sleep(0)
        for _ in range(5):
            with pytest.raises(AdapterIncompatible) as refused:
                await stage.load("bad")
            assert "lora_typo: is no half of a LoRA matrix" in refused.value.message
        assert [tokens for tokens, _ in await asyncio.gather(*asked)] == [tokens for tokens, _ in expected]
        assert (stage.bank.nbytes, [each.name for each in stage.adapters.mounts.all()]) == (nbytes, ["a", "b"])


async def test_the_expected_weights_are_compared(tmp_path: Path) -> None:
    import hashlib

    async with staged(tmp_path) as stage:
        stage.write("a", 1)
        digest = hashlib.sha256((stage.store / "a" / "adapters.safetensors").read_bytes()).hexdigest()
        with pytest.raises(AdapterIncompatible):
            await stage.load("a", weights_sha256="0" * 64)
        revision = await stage.load("a", weights_sha256=digest.upper())
        with pytest.raises(AdapterIncompatible):
            await stage.load("a", revision="0" * 64)
        assert await stage.load("a", revision=revision) == revision


async def test_requests_keep_the_revision_that_they_began_with(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        stage.write("a", 1)
        await stage.load("a")
        expected, _ = await stage.generate(PROMPT, "a", max_tokens=20)
        lease = await stage.adapters.lease([WantedAdapter("a")])
        stage.write("a", 2)
        await stage.load("a", replace=True)
        assert stage.bank.nbytes == 2 * ONE_BYTES
        other, _ = await stage.generate(PROMPT, "a", max_tokens=20)
        events = await drain(submit(stage.engine, stage.request(PROMPT, lease.uses, lease.namespace, 20)))
        assert tokens_of(events) == expected != other
        lease.end()
        lease.end()
        await settled(stage.adapters)
        assert stage.bank.nbytes == ONE_BYTES


async def test_unloading_waits_for_requests_up_to_its_limit(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        stage.write("a", 1)
        await stage.load("a")
        lease = await stage.adapters.lease([WantedAdapter("a"), WantedAdapter("a", 2)])
        with pytest.raises(AdapterInUse) as refused:
            await stage.adapters.unload("a", 0.02)
        assert refused.value.metadata == {"adapter": "a", "requests": "2"}
        assert (await stage.generate(PROMPT, "a"))[0]
        unloading = asyncio.create_task(stage.adapters.unload("a", 10))
        await asyncio.sleep(0)
        with pytest.raises(AdapterNotFound) as missing:
            await stage.adapters.lease([WantedAdapter("a")])
        assert missing.value.metadata["available"] == ""
        assert not unloading.done()
        lease.end()
        mount, freed = await unloading
        assert (mount.name, freed, stage.bank.nbytes) == ("a", ONE_BYTES, 0)


async def test_a_load_beside_an_unloading_mounts_it_anew(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        stage.write("a", 1)
        await stage.load("a")
        may_go = threading.Event()
        holding_up = asyncio.create_task(stage.engine.do(partial(may_go.wait, 10)))
        await asyncio.sleep(0)
        unloading = asyncio.create_task(stage.adapters.unload("a", 10))
        await asyncio.sleep(0)
        loading = asyncio.create_task(stage.adapters.load(LoadWish("a")))
        await asyncio.sleep(0.1)  # it would have been read by now
        may_go.set()
        await asyncio.gather(holding_up, unloading)
        mount, was_there = await loading
        assert (was_there, mount.state) == (False, MountState.ACTIVE)
        assert (await stage.generate(PROMPT, "a"))[0]


async def test_an_unloading_that_is_given_up_leaves_the_adapter(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        stage.write("a", 1)
        await stage.load("a")
        with await stage.adapters.lease([WantedAdapter("a")]):
            unloading = asyncio.create_task(stage.adapters.unload("a", 10))
            await asyncio.sleep(0.01)
            unloading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await unloading
            assert (await stage.generate(PROMPT, "a"))[0]


async def test_an_unloading_is_over_before_anything_else_happens_to_the_name(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        stage.write("a", 1)
        revision = await stage.load("a")
        busy = threading.Event()
        step = asyncio.create_task(stage.engine.do(partial(busy.wait, 10)))
        await asyncio.sleep(0.01)
        one, other = (asyncio.create_task(stage.adapters.unload("a", 10)) for _ in range(2))
        loading = asyncio.create_task(stage.load("a"))
        await asyncio.sleep(0.1)
        one_waits, other_waits, load_waits = (not task.done() for task in (one, other, loading))
        busy.set()
        assert (one_waits, other_waits, load_waits) == (True, True, True)
        with pytest.raises(AdapterNotFound):
            await other
        assert (await one)[1] == ONE_BYTES
        assert await loading == revision
        assert (await stage.generate(PROMPT, "a"))[0]
        await step


async def test_idle_unpinned_ones_make_room(tmp_path: Path) -> None:
    async with staged(tmp_path, max_bytes=2 * ONE_BYTES) as stage:
        for seed, name in enumerate("abcd"):
            stage.write(name, seed)
        await stage.load("a", pinned=True)
        await stage.load("b")
        await stage.load("c")
        assert [each.name for each in stage.adapters.mounts.all()] == ["a", "c"]
        with await stage.adapters.lease([WantedAdapter("c")]), pytest.raises(AdapterCapacity):
            await stage.load("d")
        assert stage.bank.nbytes == 2 * ONE_BYTES
        await stage.load("d")
        assert [each.name for each in stage.adapters.mounts.all()] == ["a", "d"]


async def test_one_that_is_loaded_again_goes_after_the_others(tmp_path: Path) -> None:
    async with staged(tmp_path, max_bytes=2 * ONE_BYTES) as stage:
        for seed, name in enumerate("abc"):
            stage.write(name, seed)
        for name in "abac":
            await stage.load(name)
        assert [each.name for each in stage.adapters.mounts.all()] == ["a", "c"]


async def test_one_that_is_larger_than_all_room_is_not_read(tmp_path: Path) -> None:
    async with staged(tmp_path, max_bytes=ONE_BYTES - 1) as stage:
        stage.write("a", 1)
        with pytest.raises(AdapterCapacity):
            await stage.load("a")


async def test_a_mount_that_fails_on_the_device_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with staged(tmp_path, max_bytes=ONE_BYTES) as stage:
        stage.write("a", 1)
        stage.write("b", 2)
        await stage.load("a")
        expected = await stage.generate(PROMPT, "a")

        def fail(*_: object) -> None:
            raise RuntimeError("no memory")

        with monkeypatch.context() as patched:
            patched.setattr(mx, "eval", fail)
            with pytest.raises(RuntimeError, match="no memory"):
                await stage.load("b")
        assert [each.name for each in stage.adapters.mounts.all()] == ["a"]
        assert (await stage.generate(PROMPT, "a"))[0] == expected[0]
        await stage.load("b")
        assert [each.name for each in stage.adapters.mounts.all()] == ["b"]


async def test_a_request_mounts_what_it_names_where_that_is_allowed(tmp_path: Path) -> None:
    async with staged(tmp_path, is_lazy=True, max_bytes=2 * ONE_BYTES) as stage:
        for seed, name in enumerate("abc"):
            stage.write(name, seed)
        said = await asyncio.gather(*(stage.generate(PROMPT, name) for name in "aabb"))
        assert said[0][0] == said[1][0] != said[2][0] == said[3][0]
        await stage.generate(PROMPT, "b")
        await stage.generate(PROMPT, "c")
        assert [each.name for each in stage.adapters.mounts.all()] == ["b", "c"]
        with pytest.raises(AdapterNotFound) as refused:
            await stage.generate(PROMPT, "d")
        assert refused.value.metadata["available"] == "a, b, c"


async def test_what_should_be_there_from_the_start_is_or_says_why(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        stage.write("a", 1)
        wishes = [LoadWish("gone"), LoadWish("a", pinned=True), LoadWish("b", "a", revision="0" * 64)]
        await stage.adapters.begin(stage.bank, wishes)
        assert [(each.name, each.pinned) for each in stage.adapters.mounts.all()] == [("a", True)]
        assert {name: type(error) for name, error in stage.adapters.failed.items()} == {
            "gone": AdapterNotFound,
            "b": AdapterIncompatible,
        }
        depths: list[int] = []
        for _ in range(3):
            with pytest.raises(AdapterIncompatible) as refused:
                await stage.generate(PROMPT, "b")
            depths.append(len(refused.traceback))
        assert depths == depths[:1] * 3  # it keeps nothing of the requests that were told
        await stage.load("b", source="a")
        assert "b" not in stage.adapters.failed


async def test_no_request_mounts_other_content_for_what_should_be_there(tmp_path: Path) -> None:
    async with staged(tmp_path, is_lazy=True) as stage:
        stage.write("a", 1)
        await stage.adapters.begin(stage.bank, [LoadWish("a", revision="0" * 64)])
        with pytest.raises(AdapterIncompatible):
            await stage.generate(PROMPT, "a")
        assert stage.adapters.mounts.all() == []
        await stage.load("a")
        await stage.generate(PROMPT, "a")


async def test_nothing_is_mounted_once_the_engine_stops(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        stage.write("a", 1)
        await stage.engine.stop(0)
        with pytest.raises(ModelUnloading):
            await stage.load("a")
        assert stage.adapters.mounts.nbytes == 0


async def test_a_model_that_takes_none_says_so(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        stage.write("a", 1)
        await stage.adapters.begin(None)
        for asked in (stage.load("a"), stage.generate(PROMPT, "a")):
            with pytest.raises(UnsupportedOption) as refused:
                await asked
            assert refused.value.field == "adapters"
        assert (await stage.generate(PROMPT))[0]


NAMES = "abcd"
# Two contents for each name.
SEEDS = [NAMES.index(name) * 10 + change for name in NAMES for change in range(2)]


class Chaos:
    """Mounts, unmounts, replaces and drives out, in random order, beside requests of all kinds.

    Args:
        stage: whose adapters.
        seed: of the order.
    """

    def __init__(self, stage: Stage, seed: int) -> None:
        self.stage = stage
        self.random = random.Random(seed)
        self.num_done = 0
        self.num_refused = 0

    async def churn(self) -> None:
        """Do one thing to one adapter; what is in use or has no room is refused."""
        name = self.random.choice(NAMES)
        seed = NAMES.index(name) * 10 + self.random.randrange(2)
        self.stage.write(name, seed)
        try:
            match self.random.randrange(4):
                case 0:
                    await self.stage.adapters.unload(name, 0.001)
                case 1:
                    await self.stage.load(name, replace=True)
                case 2:
                    await self.stage.load(name)
                case _:
                    await asyncio.sleep(self.random.random() * 0.003)
            self.num_done += 1
        except (AdapterNotFound, AdapterConflict, AdapterInUse, AdapterCapacity, AdapterIncompatible):
            self.num_refused += 1  # also where a file is read while it is written

    async def ask(self, number: int) -> tuple[tuple[tuple[str, float], ...], tuple[int, ...], list[int]] | None:
        """Return what one request used, by revision, its prompt and what it said."""
        wanted = [WantedAdapter(name, self.random.choice((1.0, 0.5))) for name in self.random.sample(NAMES, number % 3)]
        prompt = tuple(self.random.randrange(256) for _ in range(self.random.randrange(3, 40)))
        try:
            lease = await self.stage.adapters.lease(wanted)
        except WorkerError:
            return None
        with lease:
            used = tuple((each.revision, each.scale) for each in lease.resolved)
            asked = self.stage.request(prompt, lease.uses, lease.namespace, 12)
            return used, prompt, tokens_of(await drain(submit(self.stage.engine, asked)))


@pytest.mark.parametrize("is_lazy", [False, True])
async def test_whatever_is_mounted_and_unmounted_each_request_says_what_it_says_alone(
    tmp_path: Path, is_lazy: bool
) -> None:
    """100 interleavings with 8 rows at a time over 4 adapters and the base, in room for 3; case 15, the other half."""
    mx.clear_cache()
    before = mx.get_active_memory()
    async with staged(tmp_path, max_bytes=3 * ONE_BYTES, is_lazy=is_lazy) as stage:
        found: list[tuple[tuple[tuple[str, float], ...], tuple[int, ...], list[int]]] = []
        chaos = Chaos(stage, 5 + is_lazy)
        for round_number in range(50):
            asks = [asyncio.create_task(chaos.ask(number + round_number)) for number in range(8)]
            await asyncio.gather(*(chaos.churn() for _ in range(2)))
            found.extend(each for each in await asyncio.gather(*asks) if each is not None)
            assert stage.bank.nbytes <= 4 * ONE_BYTES
        await settled(stage.adapters)
        assert stage.adapters.mounts.nbytes == stage.bank.nbytes <= 3 * ONE_BYTES
        # Both contents of a name at least once; how many are met hangs on how fast the machine is.
        assert len({revision for used, _, _ in found for revision, _ in used}) > len(NAMES)
        for mount in stage.adapters.mounts.all():
            await stage.adapters.unload(mount.name, 1)

        # Alone: each revision under a name of its own, nothing else running.
        names: dict[str, str] = {}
        for seed in SEEDS:
            stage.write(f"only-{seed}", seed)
            names[await stage.load(f"only-{seed}")] = f"only-{seed}"
        for used, prompt, said in found:
            alone = [WantedAdapter(names[revision], scale) for revision, scale in used]
            for each in alone:
                await stage.load(each.name)
            assert (await stage.generate(prompt, *alone, max_tokens=12))[0] == said
    mx.clear_cache()
    assert mx.get_active_memory() <= before + (1 << 20)
