"""Which adapters a worker is to have mounted before it is ready: those of the settings, and what was asked for since.

It is kept of the model and not of its worker, so that it outlives every one of them: a crash, a reload, an unloading.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateway.catalogue import CatalogueModel
    from gateway.model_status import ModelStatus

# Of what a worker is told of its adapters, as JSON: all of its settings have to fit into a pipe.
MAX_TOLD_BYTES = 8 * 1024
# That are kept of one model, more than a worker can be told of: callers may call an adapter by any number of names.
MAX_ASKED = 500


@dataclass(frozen=True, slots=True)
class DesiredAdapter:
    """One adapter that is to be mounted.

    Attributes:
        adapter: what clients call it.
        source: its name in the folder of adapters; empty: the same.
        pinned: whether it may not go for others.
        revision: that its content must have; empty: any.
    """

    adapter: str
    source: str = ""
    pinned: bool = False
    revision: str = ""

    def told(self) -> Mapping[str, Any]:
        """Return what a worker is told of it."""
        return {name: value for name, value in asdict(self).items() if value != ""}


def latest(adapters: Sequence[DesiredAdapter]) -> list[DesiredAdapter]:
    """Return those of some adapters that a worker can be told of, in their order.

    Where they are too many, those go that go first where memory is short: of those not pinned the first, then of the
    others.
    """
    newest_first = adapters[::-1]
    last_to_go_first = [one for is_pinned in (True, False) for one in newest_first if one.pinned is is_pinned]
    sizes = accumulate(len(json.dumps(dict(one.told()))) + len(", ") for one in last_to_go_first)
    told = {one.adapter for one, size in zip(last_to_go_first, sizes, strict=True) if size <= MAX_TOLD_BYTES}
    return [one for one in adapters if one.adapter in told]


class DesiredAdapters:
    """The adapters that are wanted of all models. Lives on one event loop.

    Attributes:
        on_change: is called with the name of a model that others are wanted of.
        settle: waits until that outlives this process, as far as it can.
    """

    def __init__(self) -> None:
        self.on_change: Callable[[str], None] = lambda _: None
        self.settle: Callable[[], Awaitable[None]] = at_once
        self._asked: dict[str, dict[str, DesiredAdapter | None]] = {}

    def of(self, model: CatalogueModel) -> dict[str, DesiredAdapter]:
        """Return what is wanted of a model, by name: pinned ones first, and of the others last what was loaded last."""
        wanted: dict[str, DesiredAdapter | None] = {one.adapter: one for one in model.adapters}
        for name, one in self._asked.get(model.name, {}).items():
            wanted.pop(name, None)
            wanted[name] = one
        left = [one for one in wanted.values() if one is not None]
        return {one.adapter: one for one in sorted(left, key=lambda one: not one.pinned)}

    def load(self, model: str, adapter: DesiredAdapter) -> None:
        """Note that an adapter was loaded."""
        self._note(model, adapter.adapter, adapter)

    def unload(self, model: str, name: str) -> None:
        """Note that an adapter was unloaded, which goes before what the settings say."""
        self._note(model, name, None)

    def asked(self, model: str) -> Mapping[str, DesiredAdapter | None]:
        """Return what was asked for since, which goes before what the settings say; None: it is not wanted."""
        return self._asked.get(model, {})

    def restore(self, model: str, asked: Mapping[str, DesiredAdapter | None]) -> None:
        """Have what `asked` once returned hold again."""
        self._asked[model] = dict(asked)

    def forget(self, model: str) -> None:
        """Forget a model that is gone."""
        self._asked.pop(model, None)

    async def follow(self, changes: AsyncIterator[ModelStatus]) -> None:
        """Forget models as they go; runs until it is cancelled."""
        async for status in changes:
            if status.is_removed:
                self.forget(status.model)

    def _note(self, model: str, name: str, adapter: DesiredAdapter | None) -> None:
        asked = self._asked.setdefault(model, {})
        asked.pop(name, None)
        asked[name] = adapter
        if len(asked) > MAX_ASKED:
            del asked[min(asked, key=lambda one: _stays(asked[one]))]
        self.on_change(model)


def _stays(asked: DesiredAdapter | None) -> int:
    """Return how much is lost with it: what is unwanted would be wanted again, where the settings say so."""
    return 2 if asked is None else int(asked.pinned)


async def at_once() -> None:
    """Wait for nothing."""
