"""The least that the gateway and each of its workers log; both may change while they run."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

import structlog
from structlog.typing import WrappedLogger

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class LogLevels:
    """A level for the gateway, and one for each model's worker; also the structlog processor that drops lines."""

    def __init__(self, level: str) -> None:
        """Begin with one level, of `LEVELS`, for all."""
        self._gateway = self._workers = level
        self._models: dict[str, str] = {}

    @property
    def gateway(self) -> str:
        """The gateway's own."""
        return self._gateway

    def of_worker(self, model: str) -> str:
        """Return that of a model's worker."""
        return self._models.get(model, self._workers)

    def set_all(self, level: str) -> None:
        """Change that of the gateway and of all workers, now and to come."""
        self._gateway = self._workers = level
        self._models.clear()

    def set_gateway(self, level: str) -> None:
        """Change the gateway's own."""
        self._gateway = level

    def set_worker(self, model: str, level: str) -> None:
        """Change that of one model's worker, this one and those that follow it."""
        self._models[model] = level

    def __call__(
        self, _logger: WrappedLogger, _method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        """Pass on what is at least the level of whom it is about: a worker, where it names an instance.

        Raises:
            DropEvent: it is less; structlog then writes nothing.
        """
        least = self.of_worker(str(event.get("model", ""))) if "instance_id" in event else self._gateway
        if LEVELS[event["level"]] < LEVELS[least]:
            raise structlog.DropEvent
        return event
