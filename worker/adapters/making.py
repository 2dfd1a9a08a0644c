"""From the settings to the adapters of a worker."""

from __future__ import annotations

from pathlib import Path

from worker.adapters.adapters import Adapters, LoadWish, Run
from worker.adapters.store import AdapterStore
from worker.settings import WorkerSettings


def make_adapters(settings: WorkerSettings, run: Run) -> Adapters:
    """Return the adapters of a model that is not loaded yet.

    Args:
        settings: of the worker.
        run: has something done on the engine's thread.
    """
    folder = settings.adapters_folder
    store = AdapterStore(None if folder is None else Path(folder))
    return Adapters(store, settings.adapters_bytes, run, is_lazy=settings.lazy_adapters)


def desired_adapters(settings: WorkerSettings) -> list[LoadWish]:
    """Return what is to be mounted before the worker is active."""
    return [
        LoadWish(
            str(each["adapter"]),
            str(each.get("source", "")),
            pinned=bool(each.get("pinned", False)),
            revision=str(each.get("revision", "")),
        )
        for each in settings.adapters
    ]
