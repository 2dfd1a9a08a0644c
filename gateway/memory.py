"""How much memory this machine has for models, and how much of it is free.

A limit of a container counts as the machine's. Clean pages of files can be given back at any moment, so they are free.
Sources: proc(5), `meminfo`; the kernel's `admin-guide/cgroup-v2.rst` and `cgroup-v1/memory.rst`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# What is left to the system and to other programs is the rest. Source: the reference system, and about what macOS lets
# a GPU hold.
MODELS_SHARE = 0.75
MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/proc/self/cgroup")
CGROUP_ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class MachineMemory:
    """Memory in bytes.

    Attributes:
        total_bytes: of this machine, or of the container that this process is in.
        free_bytes: what could be taken now; None where the system does not say.
    """

    total_bytes: int
    free_bytes: int | None = None

    @property
    def budget_bytes(self) -> int:
        """What models may take together."""
        return int(self.total_bytes * MODELS_SHARE)


@dataclass(frozen=True, slots=True)
class _Limit:
    """What a container may take, and has taken, in bytes."""

    most: int
    used: int


def machine_memory() -> MachineMemory:
    """Ask the system."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if sys.platform != "linux":
        return MachineMemory(total)
    limits = [limit for limit in container_limits() if limit.most < total]
    free = [limit.most - limit.used for limit in limits]
    machine = _meminfo_bytes("MemAvailable")
    if machine is not None:
        free.append(machine)
    return MachineMemory(min([total, *(limit.most for limit in limits)]), max(0, min(free)) if free else None)


def container_limits(cgroup: Path = CGROUP, root: Path = CGROUP_ROOT) -> Iterator[_Limit]:
    """Yield the limits that hold for this process: of its own control group and of those around it.

    Args:
        cgroup: says which groups the process is in.
        root: where groups are folders.
    """
    for line in _read(cgroup).splitlines():
        _, controllers, name = (*line.split(":", 2), "", "")[:3]
        if controllers == "":
            yield from _limits(root, name, ("memory.max", "memory.current", "inactive_file"))
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _limits(root / "memory", name, names)


def _limits(root: Path, name: str, files: tuple[str, str, str]) -> Iterator[_Limit]:
    """Yield the limits of a group and of those around it, as far as they can be seen from here."""
    most_file, used_file, clean_key = files
    group = Path(name.lstrip("/"))
    for folder in (root / each for each in (group, *group.parents)):
        most, used = _number(folder / most_file), _number(folder / used_file)
        if most is not None:
            yield _Limit(most, max(0, (used or 0) - _counted(folder / "memory.stat", clean_key)))


def _meminfo_bytes(key: str) -> int | None:
    found = _counted(MEMINFO, f"{key}:")
    return found * 1024 if found else None


def _counted(path: Path, key: str) -> int:
    """Return the number behind a key of a file of keys and numbers; 0 where it is not there."""
    pairs = (line.split() for line in _read(path).splitlines())
    return next((int(pair[1]) for pair in pairs if len(pair) > 1 and pair[0] == key), 0)


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdecimal() else None


def _read(path: Path) -> str:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return path.read_text("ascii")
    return ""
