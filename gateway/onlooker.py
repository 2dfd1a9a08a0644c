"""Whoever wants to know of the lives of models."""

from __future__ import annotations

from typing import Protocol

from gateway.model_status import ModelState


class Onlooker(Protocol):
    """Is told of what happens to models; must neither wait nor raise."""

    def changed(self, model: str, old: ModelState, new: ModelState) -> None:
        """Take note of a model's change of state."""
        ...

    def evicted(self, model: str) -> None:
        """Take note of a model that goes to make room for another."""
        ...


class Nobody:
    """Looks on at nothing."""

    def changed(self, model: str, old: ModelState, new: ModelState) -> None:
        """Forget it."""

    def evicted(self, model: str) -> None:
        """Forget it."""
