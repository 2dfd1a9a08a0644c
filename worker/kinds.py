"""Which kind of model a checkpoint is, and so what hosts it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from worker.text_hosting import TextHosting

if TYPE_CHECKING:
    from worker.child import Child
    from worker.hosting import Hosting
    from worker.settings import WorkerSettings


def make_hosting(settings: WorkerSettings, child: Child | None) -> Hosting:
    """Return what hosts the checkpoint of the settings; one that cannot be read fails when it is loaded.

    Args:
        settings: of the worker.
        child: already started for templates, if one was.
    """
    return TextHosting(settings, child)
