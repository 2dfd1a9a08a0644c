"""A store of adapters for a tiny model, and an engine that mounts them while it runs."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.layers.adapter_bank import AdapterBank
from models.registry import LoadedModel
from tests.models.adapters.mounting import bank_of, write_for
from tests.support.tiny_models import write_llama
from tests.worker.text_engines import TextEngine, drain, request, running, submit, tiny_loader, tokens_of
from tests.worker.text_models import PACKED
from worker.adapters.adapters import Adapters, LoadWish
from worker.adapters.store import AdapterStore
from worker.adapters.wanted import WantedAdapter
from worker.engine import EngineState
from worker.events import Event, Usage
from worker.sequence import CacheUse, TextRequest
from worker.text_settings import TextSettings
from worker.workloads.text import TextWorkload

ONE_BYTES = 4 * 4 * sum((64 + 64, 64 + 32, 64 + 32, 64 + 64, 64 + 128, 64 + 128, 128 + 64)) * 2


@dataclass
class Stage:
    """Attributes: `adapters` over `engine`, of adapters in `store`."""

    engine: TextEngine
    adapters: Adapters
    store: Path
    loaded: LoadedModel
    number: int = 0

    @property
    def bank(self) -> AdapterBank:
        return bank_of(self.loaded)

    def write(self, name: str, seed: int, **options: float) -> None:
        """Put an adapter into the store, in place of what has its name."""
        write_for(self.store / name, self.loaded, seed=seed, **options)  # pyright: ignore[reportArgumentType]

    async def load(self, name: str, **options: object) -> str:
        """Mount one and return its revision."""
        mount, _ = await self.adapters.load(LoadWish(name, **options))  # pyright: ignore[reportArgumentType]
        return mount.revision

    async def generate(
        self, prompt: Sequence[int], *wanted: WantedAdapter | str, max_tokens: int = 8
    ) -> tuple[list[int], Usage]:
        """Return the tokens that a request gets, and what it used."""
        asked = [each if isinstance(each, WantedAdapter) else WantedAdapter(each) for each in wanted]
        with await self.adapters.lease(asked) as lease:
            events = await drain(submit(self.engine, self.request(prompt, lease.uses, lease.namespace, max_tokens)))
        return tokens_of(events), usage_of(events)

    def request(
        self, prompt: Sequence[int], uses: tuple[object, ...], namespace: str, max_tokens: int = 8
    ) -> TextRequest:
        self.number += 1
        return request(
            f"r{self.number}",
            tuple(prompt),
            max_tokens=max_tokens,
            adapters=uses,
            cache=CacheUse(namespace=namespace),
            token_details=True,
        )


def usage_of(events: list[Event]) -> Usage:
    return events[-1].usage  # pyright: ignore[reportAttributeAccessIssue]


@contextlib.asynccontextmanager
async def staged(
    folder: Path, *, max_bytes: int = 64 << 20, is_lazy: bool = False, settings: TextSettings | None = None
) -> AsyncGenerator[Stage]:
    """Start an engine over a tiny model with adapters beside it; at the end nothing may be left of any."""
    model, store = folder / "model", folder / "store"
    write_llama(model, **PACKED)
    async with running(TextWorkload(tiny_loader(model), settings or TextSettings())) as engine:
        loaded: Any = await engine.load()
        adapters = Adapters(AdapterStore(store), max_bytes, engine.do, is_lazy=is_lazy)
        await adapters.begin(loaded.adapters)
        yield Stage(engine, adapters, store, loaded)
        if engine.state is EngineState.READY:
            for mount in adapters.mounts.all():
                await adapters.unload(mount.name, 10)
            await settled(adapters)
            assert (bank_of(loaded).nbytes, adapters.mounts.nbytes) == (0, 0)
        await adapters.close()


async def settled(adapters: Adapters) -> None:
    """Wait until nothing is under way."""
    async with asyncio.timeout(10):
        while adapters._tasks:
            await asyncio.gather(*adapters._tasks, return_exceptions=True)
