"""What one request holds of adapters from its arrival to its end: the revisions that it began with."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from pomona.v1 import common_pb2

from models.step import AdapterUse
from worker.adapters.mounts import Mount


class AdapterLease:
    """Adapters that stay mounted until they are given back.

    Args:
        held: each with what multiplies its own scale, in the order of the request.
        give_back: called once for each.
    """

    def __init__(self, held: Sequence[tuple[Mount, float]] = (), give_back: Callable[[Mount], None] | None = None):
        self._held = tuple(held)
        self._give_back = give_back

    def __enter__(self) -> Self:
        """Hold on to them."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give them back."""
        self.end()

    @property
    def uses(self) -> tuple[AdapterUse, ...]:
        """What rows name."""
        return tuple(AdapterUse(mount.slot, scale) for mount, scale in self._held)

    @property
    def names(self) -> tuple[str, ...]:
        """What the caller calls them."""
        return tuple(mount.name for mount, _ in self._held)

    @property
    def resolved(self) -> list[common_pb2.ResolvedAdapter]:
        """What answers, exactly."""
        return [
            common_pb2.ResolvedAdapter(adapter=mount.name, revision=mount.revision, scale=scale)
            for mount, scale in self._held
        ]

    @property
    def namespace(self) -> str:
        """Return what two requests have to agree in to share keys and values: names, revisions and scales, in order."""
        if not self._held:
            return ""
        return "adapters" + json.dumps([[f"{mount.name}@{mount.revision}", scale] for mount, scale in self._held])

    def end(self) -> None:
        """Give them back, once."""
        held, self._held = self._held, ()
        for mount, _ in held:
            if self._give_back is not None:
                self._give_back(mount)


NO_ADAPTERS = AdapterLease()
