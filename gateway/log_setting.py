"""Changes the least that is logged, here and in the workers that run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from pomona.v1 import worker_pb2

from gateway.catalogue import Catalogue
from gateway.log_levels import LogLevels
from gateway.services.admin import GATEWAY
from gateway.settings import Settings
from gateway.worker_link import ask
from gateway.workers import Workers

ANSWER_LIMIT_S = 1.0


@dataclass(frozen=True, slots=True)
class LogSetting:
    """The levels, and who else must hear of a change.

    Attributes:
        levels: of the gateway and of workers to come.
        catalogue: which models there are.
        workers: that run.
    """

    levels: LogLevels
    catalogue: Catalogue
    workers: Workers
    _tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    def hold_to(self, settings: Settings) -> None:
        """Change all levels to that of the settings, here at once and in workers as soon as they are told."""
        level = settings.logs.level
        self.levels.set_all(level)
        task = asyncio.create_task(self.change("", level), name="log level")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def change(self, logger: str, level: str) -> None:
        """Change a level; workers that do not answer at once keep theirs until they are replaced.

        Args:
            logger: `GATEWAY`, a model's canonical name, or empty for the gateway and all workers.
            level: one of `log_levels.LEVELS`.
        """
        if logger == GATEWAY:
            self.levels.set_gateway(level)
            return
        if logger:
            self.levels.set_worker(logger, level)
        else:
            self.levels.set_all(level)
        models = [logger] if logger else [model.name for model in self.catalogue.models]
        told = worker_pb2.SetWorkerLogLevelRequest(level=level)
        instances = filter(None, map(self.workers.instance, models))
        await asyncio.gather(*(ask(one, "SetWorkerLogLevel", told, ANSWER_LIMIT_S) for one in instances))
