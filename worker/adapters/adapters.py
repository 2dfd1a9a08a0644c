"""The adapters of one model while requests run: mounted, replaced and unloaded beside them, and held by them.

Everything here is on the event loop. Files are read and checked beside it, and arrays are made on the engine's thread,
between two steps: a load that fails there has changed nothing. Errands of the engine's thread keep their order, so what
a request used is unmounted only behind the command that ended it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar
from weakref import WeakValueDictionary

from models.adapters.adapter import Adapter
from models.layers.adapter_bank import AdapterBank
from worker.adapters.lease import NO_ADAPTERS, AdapterLease
from worker.adapters.mounts import Mount, Mounts, MountState
from worker.adapters.reading import read_adapter
from worker.adapters.store import AdapterStore
from worker.adapters.wanted import WantedAdapter
from worker.errors import (
    AdapterConflict,
    AdapterIncompatible,
    AdapterInUse,
    AdapterNotFound,
    ModelUnloading,
    UnsupportedOption,
    WorkerError,
    incident_of,
)

MAX_READERS = 2
# How often one request mounts an adapter that others drive out before it can use it.
MAX_LAZY_TRIES = 3

T = TypeVar("T")


class Run(Protocol):
    """Has something done on the engine's thread."""

    async def __call__(self, work: Callable[[], T], /) -> T:
        """See `Engine.do`."""
        ...


@dataclass(frozen=True, slots=True)
class LoadWish:
    """What is to be mounted.

    Attributes:
        name: what clients will call it.
        source: its name in the store; empty: the same.
        pinned: whether it may not go for others.
        replace: whether it may take the place of other content of that name.
        weights_sha256: that the file of its weights must have, in hex; empty: any.
        revision: that it must have; empty: any.
    """

    name: str
    source: str = ""
    pinned: bool = False
    replace: bool = False
    weights_sha256: str = ""
    revision: str = ""


class Adapters:
    """The adapters of one model.

    Args:
        store: where they are found.
        max_bytes: of all that are mounted.
        is_lazy: whether a request may name one that is in the store and not mounted.
        run: has something done on the engine's thread.
        now: in seconds since 1970.

    Attributes:
        mounts: what is mounted.
        store: as given.
        loading: names of those that are being read and mounted.
        failed: why those are not mounted that should have been from the start.
    """

    def __init__(
        self,
        store: AdapterStore,
        max_bytes: int,
        run: Run,
        *,
        is_lazy: bool = False,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self.mounts = Mounts(max_bytes, now)
        self.loading: set[str] = set()
        self.failed: dict[str, WorkerError] = {}
        self._run = run
        self._is_lazy = is_lazy
        self._bank: AdapterBank | None = None
        self._readers = asyncio.Semaphore(MAX_READERS)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._left = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def names(self) -> list[str]:
        """What a request may name."""
        mounted = {mount.name for mount in self.mounts.all() if mount.state is MountState.ACTIVE}
        return sorted(mounted.union(self.store.names()) if self._is_lazy else mounted)

    async def begin(self, bank: AdapterBank | None, desired: Sequence[LoadWish] = ()) -> None:
        """Take the bank of the loaded model, and mount what should be there from the start.

        One that cannot be mounted is noted, so that a model is not lost for an adapter.

        Args:
            bank: None: the model takes no adapters.
            desired: in any order.
        """
        self._bank = bank
        for wish in desired:
            try:
                await self.load(wish)
            except WorkerError as error:
                self.failed[wish.name] = error
            except Exception as error:  # noqa: BLE001  (told to whoever names it or lists them)
                self.failed[wish.name] = incident_of(error, "adapter was not mounted")

    async def load(self, wish: LoadWish) -> tuple[Mount, bool]:
        """Mount an adapter, and return it, and whether it was there already.

        Raises:
            AdapterNotFound: it is not in the store.
            AdapterIncompatible: something in it does not fit, by name, or is not what was expected.
            AdapterConflict: other content has the name, and may not be replaced.
            AdapterCapacity: there is no room for it.
            ModelUnloading: the engine stops.
        """
        if self._bank is None:
            raise UnsupportedOption("adapters", "the model takes no adapters")
        return await self._finished(self._load(wish, self._bank))

    async def unload(self, name: str, wait_s: float) -> tuple[Mount, int]:
        """Unmount an adapter once nobody uses it, and return what it was and the bytes that are free again.

        Args:
            name: what it is called.
            wait_s: how long requests that use it may go on; until then nobody else may use it.

        Raises:
            AdapterNotFound: it is not mounted.
            AdapterInUse: it is used for longer, and stays.
        """
        self._mounted(name)
        try:
            async with asyncio.timeout(wait_s) as limit, self._lock(name):
                mount = self._mounted(name)
                await self._leave_idle(mount)
                limit.reschedule(None)
                await self._finished(self._forget(mount))  # whoever loads it meanwhile waits: it is on its way out
        except TimeoutError:
            used = self.mounts.get(name)
            raise AdapterInUse(name, used.num_uses if used is not None else 0) from None
        return mount, mount.nbytes

    async def lease(self, wanted: Sequence[WantedAdapter]) -> AdapterLease:
        """Hold the adapters of a request, mounting first those that may be.

        Raises:
            AdapterNotFound: there is none of a name.
            WorkerError: one could not be mounted.
        """
        if not wanted:
            return NO_ADAPTERS
        if self._bank is None:
            raise UnsupportedOption("adapters", "the model takes no adapters")
        held: list[tuple[Mount, float]] = []
        try:
            for each in wanted:
                mount = await self._use(each.name)
                held.append((mount, each.scale))
        except BaseException:
            AdapterLease(held, self._give_back).end()
            raise
        return AdapterLease(held, self._give_back)

    async def close(self) -> None:
        """End what is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _use(self, name: str) -> Mount:
        for _ in range(MAX_LAZY_TRIES):
            mount = self.mounts.get(name)
            if mount is not None and mount.state is MountState.ACTIVE:
                self.mounts.use(mount)
                return mount
            if name in self.failed:
                # Without the frames of those who were told before, which it would keep.
                raise self.failed[name].with_traceback(None)
            if not self._is_lazy or self.store.find(name) is None:
                break
            with contextlib.suppress(AdapterConflict):  # somebody has mounted one of that name meanwhile
                await self.load(LoadWish(name))
        raise AdapterNotFound(name, self.names)

    def _give_back(self, mount: Mount) -> None:
        if self.mounts.leave(mount):
            self._start(self._forget(mount))
        self._left.set()
        self._left = asyncio.Event()

    async def _load(self, wish: LoadWish, bank: AdapterBank) -> tuple[Mount, bool]:
        source = wish.source or wish.name
        folder = await asyncio.to_thread(self.store.find, source)
        if folder is None:
            raise AdapterNotFound(source, self.store.names())
        async with self._lock(wish.name), self._readers:
            self.loading.add(wish.name)
            try:
                limits = (bank.targets, self.mounts.max_bytes)
                adapter = await asyncio.to_thread(read_adapter, wish.name, folder, *limits)
                _check_expected(wish, adapter)
                mounted = self.mounts.get(wish.name)
                if mounted is not None and mounted.revision == adapter.revision:
                    mounted.pinned, mounted.source = wish.pinned, source
                    self.mounts.renew(mounted)
                    return mounted, True
                if mounted is not None and not wish.replace:
                    raise AdapterConflict(wish.name, mounted.revision)
                return await self._mount(wish, adapter, bank), False
            finally:
                self.loading.discard(wish.name)

    async def _mount(self, wish: LoadWish, adapter: Adapter, bank: AdapterBank) -> Mount:
        victims = self.mounts.make_room(wish.name, adapter.nbytes)
        try:
            slot = await self._run(partial(bank.exchange, adapter, [victim.slot for victim in victims]))
        except BaseException:
            for victim in self.mounts.cancel(adapter.nbytes, victims):
                self._start(self._forget(victim))
            raise
        for victim in victims:
            self.mounts.remove(victim)
        mount = Mount(
            name=wish.name,
            source=wish.source or wish.name,
            slot=slot,
            revision=adapter.revision,
            rank=adapter.rank,
            scale=adapter.scale,
            num_layers=len(adapter.layers),
            num_skipped=adapter.num_skipped,
            nbytes=adapter.nbytes,
            pinned=wish.pinned,
        )
        replaced = self.mounts.add(mount, adapter.nbytes)
        self.failed.pop(wish.name, None)
        if replaced is not None and replaced.is_idle:
            await self._forget(replaced)
        return mount

    async def _leave_idle(self, mount: Mount) -> None:
        """Wait until nobody uses an adapter that nobody may begin to use; where that is given up, it stays."""
        self.mounts.unload(mount)
        try:
            while not mount.is_idle:
                await self._left.wait()
        except BaseException:
            self.mounts.keep(mount)
            raise

    async def _forget(self, mount: Mount) -> None:
        bank = self._bank
        if bank is not None:
            with contextlib.suppress(ModelUnloading):
                await self._run(partial(bank.unmount, mount.slot))
        self.mounts.remove(mount)

    def _mounted(self, name: str) -> Mount:
        mount = self.mounts.get(name)
        if mount is None:
            raise AdapterNotFound(name, [each.name for each in self.mounts.all()])
        return mount

    def _lock(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())

    async def _finished(self, work: Coroutine[Any, Any, T]) -> T:
        """Have something done to its end, whether or not the caller still waits."""
        return await asyncio.shield(self._start(work))

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_look_at)
        return task


def _check_expected(wish: LoadWish, adapter: Adapter) -> None:
    if wish.weights_sha256 and wish.weights_sha256.lower() != adapter.weights_sha256:
        problem = f"the SHA-256 of its weights is {adapter.weights_sha256}, and another was expected"
        raise AdapterIncompatible(wish.name, problem, sha256=adapter.weights_sha256)
    if wish.revision and wish.revision != adapter.revision:
        problem = f"its revision is {adapter.revision}, and another was expected"
        raise AdapterIncompatible(wish.name, problem, revision=adapter.revision)


def _look_at(task: asyncio.Task[Any]) -> None:
    """Look at the outcome, which nobody may be waiting for any more."""
    if not task.cancelled():
        task.exception()
