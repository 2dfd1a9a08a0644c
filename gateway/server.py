"""All parts of one server: built, started, drained and stopped; `gateway.serving` does so for a process."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

from structlog.typing import FilteringBoundLogger

from gateway.address import ListenError
from gateway.core import Core
from gateway.drain import END_LIMIT_S, Drain
from gateway.followers import Followers
from gateway.front import Front
from gateway.grpc_batches import free_batches
from gateway.journal import Journal
from gateway.model_status import ModelState
from gateway.services.admin import Drained
from gateway.settings import Settings

__all__ = ["Gateway", "ListenError"]

LAST_LINES_S = 1.0  # for the last log lines to be written
WORKER_COMMAND = (sys.executable, "-P", "-m", "worker")


class Gateway:
    """All parts of one server, put together. Lives on one event loop.

    Attributes:
        journal: its log, its settings and its observers.
        core: what serves models.
        front: what clients reach.
    """

    def __init__(
        self,
        settings: Settings,
        worker_command: tuple[str, ...] = WORKER_COMMAND,
        reload: Callable[[], Settings] | None = None,
    ) -> None:
        """Build everything; nothing runs or listens yet.

        Args:
            settings: all of them.
            worker_command: the program of workers with its first arguments.
            reload: reads the settings again when the catalogue is refreshed; None: they stay as they are.

        Raises:
            ListenError: the address is not one that this server may listen at, or workers have no place to listen.
            SettingsError: the models' names contradict each other.
        """
        free_batches()
        self.journal = Journal(settings)
        self.core = Core(self.journal, worker_command, reload or (lambda: settings))
        self.front = Front(self.journal, self.core, self.drain)
        core, live = self.core, self.journal.live
        self._drain = Drain(
            self.front.health, core.admission, core.requests, core.workers, lambda: live.now().limits, self.journal.log
        )
        self._followers = Followers(self.journal.log)

    @property
    def log(self) -> FilteringBoundLogger:
        """Takes lines."""
        return self.journal.log

    @property
    def settings(self) -> Settings:
        """All settings, as they were read last."""
        return self.journal.live.now()

    async def start(self) -> str:
        """Listen and accept RPCs; return the address with the port that was taken.

        Raises:
            ListenError: the address is taken or not allowed.
            SettingsError: another server keeps its state where this one is to keep it.
        """
        address = self.front.bind()
        await self.journal.observation.start()
        await self.core.start()
        for part in (self.front, self.core, self.journal.observation):
            self._followers.begin(part.followers())
        await self.front.start()
        self.core.begin_early()
        self.log.info("server started", address=address, models=[model.name for model in self.core.catalogue.models])
        return address

    async def reload(self) -> None:
        """Read tokens, certificates, settings and models again, and hold to them where they are right."""
        await self.front.refresh()
        await self.core.reload()

    async def drain(self, grace_s: float) -> Drained:
        """Take no new work, wait for what runs, and end what is left after `grace_s` seconds."""
        return await self._drain.run(grace_s)

    async def drain_or_hurry(self, hurry: asyncio.Event) -> None:
        """Take leave of clients with the configured notice and grace; once `hurry` is set, with the short one."""
        await self._drain.leave(hurry, lambda: self.front.close_connections(self.longest_stop_s))

    def is_sound(self) -> bool:
        """Say whether the parts work without which no model can be loaded or unloaded."""
        return self.failure is None

    @property
    def failure(self) -> BaseException | None:
        """What broke one of these parts."""
        return self.core.workers.writer.failure

    def status(self) -> str:
        """Tell in a few words what the server does."""
        states = [self.core.workers.state(model.name).state for model in self.core.catalogue.models]
        loaded = states.count(ModelState.ACTIVE)
        return f"{loaded} of {len(states)} models loaded, {len(self.core.requests)} requests"

    @property
    def longest_stop_s(self) -> float:
        """How long `drain_or_hurry` and `stop` take at most, in seconds."""
        limits = self.settings.limits
        return limits.drain_notice_s + limits.drain_grace_s + END_LIMIT_S + self.core.longest_worker_s + LAST_LINES_S

    async def stop(self, hurry: asyncio.Event | None = None) -> None:
        """Stop every worker, sooner once `hurry` is set, then the server, and leave no socket behind."""
        await self.core.stop(hurry or asyncio.Event())
        await self.front.stop()
        await self._followers.stop()
        await self.journal.observation.close()
        self.core.release()
        self.log.info("server stopped")
        await asyncio.to_thread(self.journal.output.close, LAST_LINES_S)
