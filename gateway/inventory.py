"""What belongs into the catalogue: models of the settings, of their folder and of the hub's cache, read on request.

The only writer of the catalogue and of the models that workers are kept for. Files are read in a thread; what was found
is then put in place at once, so that nobody ever sees half of a change. A model that is gone while a worker has it
stays, and goes once it is unloaded.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from structlog.typing import FilteringBoundLogger

from gateway.catalogue import Catalogue, CatalogueModel
from gateway.desired_adapters import DesiredAdapter
from gateway.errors import ModelNotFound
from gateway.hub.cache import CachedModel, cached_models
from gateway.model_status import LoadOptions, WorkerPool
from gateway.models_folder import models_in
from gateway.request_errors import InvalidField, Violation
from gateway.sections.model import ModelSettings
from gateway.settings import Settings, SettingsError


@dataclass(frozen=True, slots=True)
class Found:
    """What there is.

    Attributes:
        models: of the catalogue, by name.
        cached: those of them that lie in the hub's cache, by name.
    """

    models: Mapping[str, CatalogueModel]
    cached: Mapping[str, CachedModel]


@dataclass(frozen=True, slots=True)
class Differences:
    """What changed in the catalogue, by name."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sources:
    """Where models come from.

    Attributes:
        settings: as they were read last.
        cache: folder of the hub's cache.
        reload: reads the settings again; raises SettingsError.
    """

    settings: Settings
    cache: Path
    reload: Callable[[], Settings]

    def again(self) -> Sources:
        """Return the same with settings that are read now."""
        return replace(self, settings=self.reload())

    def find(self) -> Found:
        """Return the models of the settings, of their models folder and, where they want it, of the hub's cache.

        It reads the disk. A name or alias of the settings goes before that of the folder, and both before that of a
        repository.

        Raises:
            ValueError: two models of the settings share a name.
        """
        configured = [_entry(one) for one in self.settings.models]
        taken = {name for model in configured for name in (model.name, *model.aliases)}
        folder = models_in(self.settings.models_folder) if self.settings.models_folder is not None else {}
        configured += [CatalogueModel(name, path) for name, path in folder.items() if name not in taken]
        taken |= folder.keys()
        cached = cached_models(self.cache) if self.settings.hub_models else []
        listed = {model.name: model for model in cached if model.name not in taken}
        models = [*configured, *(CatalogueModel(model.name, model.checkpoint) for model in listed.values())]
        return Found(_by_name(models), listed)


class Inventory:
    """Keeps the catalogue and the workers' models equal to what there is. Lives on one event loop.

    Args:
        found: what both hold now.
        sources: where that came from.
        catalogue: for lookups.
        workers: one for each model.
        log: takes what changes.
        on_settings: is told of settings that were read again, once their models are in place.
    """

    def __init__(
        self,
        found: Found,
        sources: Sources,
        catalogue: Catalogue,
        workers: WorkerPool,
        log: FilteringBoundLogger,
        on_settings: Callable[[Settings], None] = lambda _: None,
    ) -> None:
        self._found = found
        self._sources = sources
        self._catalogue = catalogue
        self._workers = workers
        self._log = log
        self._on_settings = on_settings
        self._numbers = itertools.count(1)
        self._newest = 0
        self._leaving: set[str] = set()

    def cached(self, name: str) -> CachedModel | None:
        """Return the model of the hub's cache that has this name; None where it is not of the cache."""
        return self._found.cached.get(name)

    async def refresh(self, *, with_settings: bool = True) -> Differences:
        """Read the cache again, the settings too unless told otherwise, and return what changed by that.

        Raises:
            InvalidField: the settings cannot be read; the log says why, and everything stays as it is.
        """
        number = next(self._numbers)
        try:
            sources = await asyncio.to_thread(self._sources.again) if with_settings else self._sources
            found = await asyncio.to_thread(sources.find)
            if number < self._newest:  # one that began later was done sooner, and saw all that this one did
                return Differences()
            differences = self._apply(found)
        except (SettingsError, ValueError) as error:
            self._log.warning("settings not read again", problem=str(error))
            problem = "of the server cannot be read again; its log says why"
            raise InvalidField((Violation("settings", problem),)) from error
        self._newest, self._sources = number, sources
        if with_settings:
            self._on_settings(sources.settings)
        return differences

    def take_out(self, name: str) -> bool:
        """Take a model out of the catalogue, unless a worker has it, and return whether that was done.

        Whoever does it refreshes once its files are gone, or are not.
        """
        if not self._workers.remove(name):
            return False
        self._catalogue.replace(model for model in self._catalogue.models if model.name != name)
        return True

    async def follow(self) -> None:
        """Let models go that are gone, once no worker has them; runs until it is cancelled."""
        changes = self._workers.watch()
        for name in tuple(self._leaving):  # what changed while nobody followed
            self._let_leave(name)
        async for status in changes:
            self._let_leave(status.model)

    def _let_leave(self, name: str) -> None:
        if name in self._leaving and self.take_out(name):
            self._leaving.discard(name)

    def _apply(self, found: Found) -> Differences:
        """Put in place what was found; without a wait in between."""
        before = {model.name: model for model in self._catalogue.models}
        gone = [name for name in before if name not in found.models]
        kept = [name for name in gone if not self._workers.can_remove(name)]
        self._catalogue.replace(_beside(found.models.values(), [before[name] for name in kept]))
        for name in gone:
            self._workers.remove(name)
        old = before.keys() - self._leaving
        differences = Differences(
            added=tuple(sorted(found.models.keys() - old)),
            removed=tuple(sorted(old - found.models.keys())),
            changed=tuple(
                sorted(name for name, model in found.models.items() if name in old and before[name] != model)
            ),
        )
        self._found, self._leaving = found, set(kept)
        for name in (*differences.added, *differences.changed):
            self._workers.put(name, partial(configured_options, self._catalogue, name))
        if differences != Differences():
            self._log.info("catalogue changed", **asdict(differences))
        running = [name for name in differences.changed if not self._workers.can_remove(name)]
        if running:
            self._log.info("models run with their former settings until they are loaded again", models=running)
        return differences


def configured_options(catalogue: Catalogue, name: str) -> LoadOptions:
    """Return the options that hold for a model where none is chosen; none at all for one that is gone."""
    try:
        return catalogue.configured(catalogue.resolve(name))
    except ModelNotFound:
        return LoadOptions()


def _entry(told: ModelSettings) -> CatalogueModel:
    adapters = tuple(DesiredAdapter(**one.model_dump()) for one in told.adapters)
    defaults = told.defaults.model_dump(exclude_none=True)
    return CatalogueModel(**told.model_dump(exclude={"adapters", "defaults"}), adapters=adapters, defaults=defaults)


def _beside(found: Iterable[CatalogueModel], kept: Sequence[CatalogueModel]) -> list[CatalogueModel]:
    """Return both, the kept ones by their canonical names alone, which no alias of the found ones may take."""
    names = {model.name for model in kept}
    rest = [replace(model, aliases=tuple(name for name in model.aliases if name not in names)) for model in found]
    return [*rest, *(replace(model, aliases=()) for model in kept)]


def _by_name(models: Iterable[CatalogueModel]) -> dict[str, CatalogueModel]:
    """Return the models by name.

    Raises:
        ValueError: two have the same.
    """
    found: dict[str, CatalogueModel] = {}
    for model in models:
        if model.name in found:
            msg = f"two models are named {model.name!r}"
            raise ValueError(msg)
        found[model.name] = model
    return found
