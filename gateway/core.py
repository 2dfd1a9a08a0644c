"""What serves models, without a socket for clients: the catalogue, workers, memory, turns, and what is kept of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

from gateway.desired_adapters import DesiredAdapters
from gateway.desired_state import DesiredState
from gateway.entrance import pull_refusal
from gateway.estimate import Estimator
from gateway.followers import Begin
from gateway.hub.cache import cache_folder
from gateway.hub.download import PULL_COMMAND, Downloader, pull_command
from gateway.inventory import Inventory, Sources
from gateway.journal import Journal
from gateway.log_setting import LogSetting
from gateway.parts import (
    follow_settings,
    found_models,
    make_admission,
    make_catalogue,
    make_fits,
    make_retries,
    make_turns,
    make_workers,
    socket_folder,
    take_state,
)
from gateway.preload import preload, wanted_early
from gateway.process import Command
from gateway.pulls import Pulls
from gateway.request_errors import InvalidField
from gateway.requests import Requests
from gateway.services.stock import Stock
from gateway.settings import Settings, SettingsError, process_environment
from gateway.state_file import StateInUse
from gateway.watched import Watched
from gateway.worker_starter import WorkerStarter, worker_environment


class Core:
    """All that a gateway has of models. Lives on one event loop."""

    def __init__(self, journal: Journal, worker_command: tuple[str, ...], reload: Callable[[], Settings]) -> None:
        """Build everything; nothing runs yet.

        Args:
            journal: the log and the settings.
            worker_command: the program of workers with its first arguments.
            reload: reads the settings again.

        Raises:
            ListenError: workers have no place to listen.
            SettingsError: the models' names contradict each other.
        """
        live, log, settings = journal.live, journal.log, journal.live.now()
        self._journal = journal
        command = Command(worker_command, worker_environment(process_environment()))
        cache = cache_folder(process_environment())
        sources = Sources(settings, cache, reload)
        found = found_models(sources)
        self.catalogue = make_catalogue(settings, found, command, log)
        self.admission = make_admission(settings.limits, self.catalogue)
        self.requests = Requests()
        self.desired = DesiredAdapters()
        self.turns = make_turns(settings.turns, log)
        fits = make_fits(live.now, self.catalogue, command, log)
        self._sockets = socket_folder()
        starter = WorkerStarter(
            self.catalogue,
            live.now,
            self._sockets,
            command,
            log,
            fits.memory,
            desired=self.desired,
            log_level=journal.levels.of_worker,
            turns=self.turns,
        )
        self.longest_worker_s = starter.longest_stop_s
        self.workers = make_workers(settings, self.catalogue, starter, fits, log, journal.observation)
        self.estimator = Estimator(self.workers, fits)
        self.log_setting = LogSetting(journal.levels, self.catalogue, self.workers)
        self.retries = make_retries(settings.retries)
        take = partial(take_state, settings, process_environment())
        self.state = DesiredState(take, self.workers, self.desired, log)
        self._inventory = Inventory(found, sources, self.catalogue, self.workers, log, live.change)
        downloader = Downloader(pull_command(process_environment(), cache, PULL_COMMAND), log)
        self._pulls = Pulls(downloader.run, partial(self._inventory.refresh, with_settings=False))
        refusal = pull_refusal(settings)
        self.stock = Stock(self.catalogue, self.workers, self.admission, self._inventory, self._pulls, cache, refusal)
        self._preloads: set[asyncio.Task[None]] = set()
        self._connect()

    async def start(self) -> None:
        """Take up what was kept, and begin to apply events.

        Raises:
            SettingsError: another server keeps its state where this one is to keep it.
        """
        try:
            await self.state.begin()
        except StateInUse:
            raise SettingsError("state_folder: another server keeps its state for this address there") from None
        await self.workers.start()

    def followers(self) -> dict[str, Begin]:
        """Return what is to run from the start to the end, by name."""
        return {
            "inventory": self._inventory.follow,
            "state": self.state.follow,
            "state file": self.state.keep,
            "adapters": partial(self.desired.follow, self.workers.watch()),
        }

    def begin_early(self) -> None:
        """Load the models that are wanted early, and warn of what is not there."""
        self._preload(wanted_early(self._journal.live.now()))
        self._warn_of_missing()

    def _warn_of_missing(self) -> None:
        folder, log = self._journal.live.now().models_folder, self._journal.log
        if folder is not None and not folder.is_dir():
            log.warning("models folder is not there", folder=str(folder))
        for model in self.catalogue.models:
            if not model.checkpoint.exists():
                log.warning("checkpoint is not there", model=model.name, checkpoint=str(model.checkpoint))

    async def reload(self) -> None:
        """Read settings and models again, and hold to them where they are right; the log tells what came of it."""
        before = set(wanted_early(self._journal.live.now()))
        try:
            await self.stock.refresh()
        except InvalidField:
            return  # the log has it, and everything is as it was
        self._preload(name for name in wanted_early(self._journal.live.now()) if name not in before)
        self._warn_of_missing()
        self._journal.log.info("settings read again")

    async def stop(self, hurry: asyncio.Event) -> None:
        """Stop every worker, sooner once `hurry` is set."""
        for preloading in self._preloads:
            preloading.cancel()
        hurrying = asyncio.create_task(self._hurry(hurry))
        try:
            await self.state.close()  # before workers are unwanted, which forgets what was chosen
            await self._pulls.close()
            await self.workers.stop(0.0)
        finally:
            hurrying.cancel()

    def release(self) -> None:
        """Leave no socket of workers behind."""
        self._sockets.close()

    def _connect(self) -> None:
        """Have the parts hear of each other."""
        self._journal.observation.watch(Watched(self.catalogue, self.workers, self.admission, self.requests))
        follow_settings(self._journal.live, self.admission, self.retries)
        self._journal.live.follow("logs.level", apply=self.log_setting.hold_to)

    def _preload(self, models: Iterable[str]) -> None:
        task = asyncio.create_task(preload(list(models), self.workers, self._journal.log), name="preload")
        self._preloads.add(task)
        task.add_done_callback(self._preloads.discard)

    async def _hurry(self, hurry: asyncio.Event) -> None:
        await hurry.wait()
        self.workers.hurry()
