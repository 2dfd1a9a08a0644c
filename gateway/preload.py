"""Loads the models that are to be there from the start, one after the other, while the server already answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from structlog.typing import FilteringBoundLogger

from gateway.errors import GatewayError
from gateway.model_status import WorkerPool
from gateway.settings import Settings

LIMIT_S = 600.0  # for one of them, before the next has its turn; its load goes on


def wanted_early(settings: Settings) -> list[str]:
    """Return the models that the settings want loaded, in their order."""
    return [model.name for model in settings.models if model.preload]


async def preload(
    models: Iterable[str], workers: WorkerPool, log: FilteringBoundLogger, limit_s: float = LIMIT_S
) -> None:
    """Load some models, none in the place of another; one that cannot be loaded does not keep the next from it.

    Args:
        models: canonical names, in their order.
        workers: who loads them.
        log: is told of failures.
        limit_s: for each of them, in seconds.
    """
    for model in models:
        try:
            async with asyncio.timeout(limit_s):
                await workers.load(model, None, wait=True, allow_eviction=False)
        except TimeoutError:
            log.warning("model not loaded in time; the next has its turn", model=model, limit_s=limit_s)
        except GatewayError as error:
            log.warning("model not loaded", model=model, error=type(error).__name__, problem=str(error))
