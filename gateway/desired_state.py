"""What callers chose for models, kept beyond this server: restored when it starts, written whenever it changes.

Lives on one event loop; the file is written in a thread, all changes that came meanwhile at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from structlog.typing import FilteringBoundLogger

from gateway.changes import Watch
from gateway.desired_adapters import DesiredAdapters
from gateway.model_status import Keeping, LoadOptions, ModelStatus
from gateway.state_file import NOTHING, DesiredModel, StateFile

SAVE_LIMIT_S = 5.0  # for whoever waits for a file to be written: a disk may hang


class Restoring(Protocol):
    """What is asked of whoever keeps the workers."""

    def state(self, model: str) -> ModelStatus:
        """Return what is known of `model` now."""
        ...

    def watch(self) -> Watch:
        """Return every change from now on."""
        ...

    def restore(self, model: str, options: LoadOptions, keeping: Keeping) -> bool:
        """Take what was chosen for a model in an earlier life of the server; say whether there is such a model."""
        ...


class DesiredState:
    """Keeps a file equal to what is chosen.

    Args:
        take: takes the file, or returns None where nothing is kept; it may block.
        workers: who holds options, pins and idle times.
        adapters: that are wanted.
        log: is told where a file is not read or not written.
    """

    def __init__(
        self,
        take: Callable[[], StateFile | None],
        workers: Restoring,
        adapters: DesiredAdapters,
        log: FilteringBoundLogger,
    ) -> None:
        self._take = take
        self._workers = workers
        self._adapters = adapters
        self._log = log
        self._watch = workers.watch()
        self._file: StateFile | None = None
        self._models: dict[str, DesiredModel] = {}
        self._waiting: dict[str, DesiredModel] = {}  # of models that are not there (yet)
        self._number = 0  # of changes
        self._written = 0
        self._changed = asyncio.Event()
        self._saved = asyncio.Event()
        self._saving = asyncio.Lock()
        self._is_failing = False
        self._is_closed = False

    async def begin(self) -> None:
        """Take the file and have what it holds hold again.

        Raises:
            StateInUse: another server has it.
        """
        try:
            self._file = await asyncio.to_thread(self._take)
            self._waiting = await asyncio.to_thread(self._file.read) if self._file is not None else {}
        except ValueError as error:
            self._log.warning("state put aside: its file is broken", problem=str(error))
        except OSError as error:
            self._log.warning("what callers choose is not kept", problem=error.strerror)
            self._let_go()  # what is there already is not to be lost
        for model in list(self._waiting):
            if not self._workers.state(model).is_removed:
                self._restore(model)
        self._adapters.on_change, self._adapters.settle = self._note, self.settle

    async def follow(self) -> None:
        """Note every change; runs until it is cancelled."""
        async for status in self._watch:
            self._see(status)

    async def keep(self) -> None:
        """Write every change; runs until it is cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._save()

    async def settle(self) -> None:
        """Wait until all changes are written, as far as they can be, but no longer than a limit."""
        self._catch_up()
        number = self._number
        try:
            async with asyncio.timeout(SAVE_LIMIT_S):
                while self._written < number and not self._is_failing and self._file is not None:
                    await self._saved.wait()
        except TimeoutError:
            self._log.warning("state not written in time")

    async def close(self) -> None:
        """Note nothing more, write what is not written, and let go of the file."""
        self._catch_up()
        self._is_closed = True
        if self._written < self._number:
            await self._save()
        self._let_go()

    def _let_go(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _catch_up(self) -> None:
        for model in self._watch.unread:
            self._see(self._workers.state(model))

    def _see(self, status: ModelStatus) -> None:
        if status.is_removed:
            self._forget(status.model)
        elif status.model in self._waiting:
            self._restore(status.model)
        else:
            self._note(status.model)

    def _restore(self, model: str) -> None:
        desired = self._waiting.pop(model)
        self._models[model] = desired
        self._adapters.restore(model, desired.adapters)
        if not self._workers.restore(model, desired.options, desired.keeping):
            self._note(model)  # it runs already: what was chosen now goes before

    def _note(self, model: str) -> None:
        status = self._workers.state(model)
        desired = DesiredModel(status.options, status.keeping, dict(self._adapters.asked(model)))
        if not status.is_removed and desired != self._models.get(model, NOTHING):
            self._change(model, desired)

    def _forget(self, model: str) -> None:
        if model in self._models or model in self._waiting:
            self._waiting.pop(model, None)
            self._change(model, NOTHING)

    def _change(self, model: str, desired: DesiredModel) -> None:
        if self._is_closed:
            return
        if desired == NOTHING:
            self._models.pop(model, None)
        else:
            self._models[model] = desired
        self._number += 1
        self._changed.set()

    async def _save(self) -> None:
        """Write everything; where that fails it is said once, and done again with the next change."""
        async with self._saving:
            if self._file is not None:
                await self._write(self._file)

    async def _write(self, file: StateFile) -> None:
        number, models = self._number, {**self._waiting, **self._models}
        try:
            await asyncio.to_thread(file.write, models)
        except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: the system starts no thread for it
            if not self._is_failing:
                problem = error.strerror if isinstance(error, OSError) else type(error).__name__
                self._log.warning("what callers choose is not written", problem=problem)
            self._is_failing = True
        else:
            self._written, self._is_failing = number, False
        self._saved.set()
        self._saved = asyncio.Event()
