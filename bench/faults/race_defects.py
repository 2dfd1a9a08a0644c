"""What races must find: a keeper of workers with one thing wrong with it, for each kind of race."""

import asyncio
from typing import Any

from bench.faults.racecourse import QuickFarm
from gateway.model_status import Lease, LoadOptions


class Forgetful:
    """Does not know that a request holds its worker: an unload cuts it off."""

    def __init__(self, farm: QuickFarm) -> None:
        """Stand before the keeper of a farm's workers."""
        self._farm = farm
        self._workers = farm.workers

    def __getattr__(self, name: str) -> Any:
        """Be like the keeper in everything else."""
        return getattr(self._workers, name)

    async def acquire(self, model: str, timeout_s: float | None) -> Lease:
        """Return a hold that is none."""
        lease = await self._workers.acquire(model, timeout_s)
        lease.release()
        return lease


class Eager(Forgetful):
    """Starts a worker for each load, also where one is in flight."""

    async def load(self, model: str, options: LoadOptions | None, wait: bool) -> Any:
        """Load, and start a worker too many."""
        self._farm.start_worker(model, LoadOptions(), lambda _: None).stop()
        return await self._workers.load(model, options, wait)


class Deaf(Forgetful):
    """Does not tell who waits for a worker that there will be none."""

    async def acquire(self, model: str, timeout_s: float | None) -> Lease:
        """Wait for ever where the model has no worker."""
        if self._workers.instance(model) is None:
            await asyncio.Event().wait()
        return await self._workers.acquire(model, timeout_s)
