"""Which adapters are mounted, who uses them and what they take: plain accounting, without a tensor.

    ACTIVE ──unload──> UNLOADING ──nobody uses it──> gone
      │  <──too long──────┘
      ├──replaced──> RETIRED ──nobody uses it──> gone
      └──its room is needed──> EVICTED ──────────> gone

Requests that came before keep what they began with: they hold a use of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from worker.errors import AdapterCapacity

_log = logging.getLogger(__name__)


class MountState(Enum):
    """Where a mounted adapter is; only `Mounts` changes it."""

    ACTIVE = "active"
    UNLOADING = "unloading"
    RETIRED = "retired"
    EVICTED = "evicted"


@dataclass(slots=True, eq=False)
class Mount:
    """One revision of an adapter in memory.

    Attributes:
        name: what clients call it.
        source: its name in the store.
        slot: of the bank.
        revision: changes with its content.
        rank: the largest of its layers.
        scale: as its settings state it.
        num_layers: that it changes.
        num_skipped: tensors of its file that are left out.
        nbytes: of its matrices.
        pinned: whether it may not go for others.
        state: where it is.
        num_uses: requests that use it now, or have yet to.
        num_requests: that ever did.
        last_used: in seconds since 1970; None: never.
    """

    name: str
    source: str
    slot: int
    revision: str
    rank: int
    scale: float
    num_layers: int
    num_skipped: int
    nbytes: int
    pinned: bool = False
    state: MountState = MountState.ACTIVE
    num_uses: int = 0
    num_requests: int = 0
    last_used: float | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nobody uses it."""
        return self.num_uses == 0


class Mounts:
    """The mounted adapters of one model.

    Args:
        max_bytes: of all that are mounted.
        now: in seconds since 1970.
    """

    def __init__(self, max_bytes: int, now: Callable[[], float]) -> None:
        self.max_bytes = max_bytes
        self._now = now
        self._by_name: dict[str, Mount] = {}
        self._order: dict[Mount, None] = {}  # least recently used first; those that are going too
        self._reserved = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all that are in memory, and of those whose room is reserved."""
        return self._reserved + sum(mount.nbytes for mount in self._order)

    def get(self, name: str) -> Mount | None:
        """Return what is mounted under a name."""
        return self._by_name.get(name)

    def all(self) -> list[Mount]:
        """Return what is mounted, by name."""
        return sorted(self._by_name.values(), key=lambda mount: mount.name)

    def make_room(self, name: str, num_bytes: int) -> list[Mount]:
        """Reserve room for what is to be mounted under a name, and return the idle ones that must go for it.

        What has the name and nobody uses will be replaced, and takes no room of its own. Those that must go are evicted
        from now on: `cancel` takes that back.

        Raises:
            AdapterCapacity: there is not so much room beside those that are pinned or in use; nothing has changed.
        """
        replaced = self._by_name.get(name)
        leaving = [replaced] if replaced is not None and replaced.is_idle else []
        free = self.max_bytes - self.nbytes + sum(mount.nbytes for mount in leaving)
        victims: list[Mount] = []
        for mount in self._order:
            if free >= num_bytes:
                break
            if mount is not replaced and mount.is_idle and not mount.pinned and mount.state is MountState.ACTIVE:
                victims.append(mount)
                free += mount.nbytes
        if free < num_bytes:
            raise AdapterCapacity(name, num_bytes, free, self.max_bytes)
        self._reserved += num_bytes
        for victim in victims:
            self._move(victim, MountState.EVICTED)
            del self._by_name[victim.name]
        return victims

    def cancel(self, num_bytes: int, victims: Sequence[Mount]) -> list[Mount]:
        """Give reserved room back, and let stay what was to go for it: nothing was mounted.

        Returns:
            Those whose names others have taken meanwhile: they have to go all the same.
        """
        self._reserved -= num_bytes
        for victim in victims:
            if victim.name not in self._by_name:
                self._move(victim, MountState.ACTIVE)
                self._by_name[victim.name] = victim
        return [victim for victim in victims if victim.state is MountState.EVICTED]

    def add(self, mount: Mount, num_reserved: int) -> Mount | None:
        """Take a mounted adapter, in the room that was reserved for it; return what it replaces under its name."""
        self._reserved -= num_reserved
        replaced = self._by_name.get(mount.name)
        if replaced is not None:
            self._move(replaced, MountState.RETIRED)
        self._by_name[mount.name] = mount
        self._order[mount] = None
        return replaced

    def remove(self, mount: Mount) -> None:
        """Forget an adapter that is in memory no more."""
        self._order.pop(mount, None)
        if self._by_name.get(mount.name) is mount:
            del self._by_name[mount.name]

    def use(self, mount: Mount) -> None:
        """Note that a request uses an adapter from now on."""
        mount.num_uses += 1
        mount.num_requests += 1
        self._touch(mount)

    def leave(self, mount: Mount) -> bool:
        """Note that a request no longer uses it; return whether it was the last one that a replaced one waited for."""
        mount.num_uses -= 1
        self._touch(mount)
        return mount.state is MountState.RETIRED and mount.is_idle

    def unload(self, mount: Mount) -> None:
        """Let nobody use an adapter any more who does not already."""
        self._move(mount, MountState.UNLOADING)

    def keep(self, mount: Mount) -> None:
        """Take an `unload` back."""
        self._move(mount, MountState.ACTIVE)

    def renew(self, mount: Mount) -> None:
        """Note that an adapter was asked for that is mounted: it goes no sooner than one that is mounted now."""
        if mount in self._order:
            del self._order[mount]
            self._order[mount] = None

    def _touch(self, mount: Mount) -> None:
        mount.last_used = self._now()
        self.renew(mount)

    def _move(self, mount: Mount, state: MountState) -> None:
        facts = {"adapter": mount.name, "revision": mount.revision, "before": mount.state.value, "after": state.value}
        _log.info("adapter moved", extra=facts)
        mount.state = state
