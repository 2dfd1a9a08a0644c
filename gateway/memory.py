"""How much memory this machine has for models, and how much of it is free.

A limit of a container counts as the machine's. Clean pages of files can be given back at any moment, so they are free.
Sources: proc(5), `meminfo`; the kernel's `admin-guide/cgroup-v2.rst` and `cgroup-v1/memory.rst`; on macOS, `sysctl
kern.memorystatus_level`.
"""

from __future__ import annotations

import contextlib
import ctypes
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
        set_bytes: what models may take together, where an operator set that.
    """

    total_bytes: int
    free_bytes: int | None = None
    set_bytes: int | None = None

    @property
    def budget_bytes(self) -> int:
        """What models may take together; never more than there is."""
        return int(self.total_bytes * MODELS_SHARE) if self.set_bytes is None else min(self.set_bytes, self.total_bytes)


@dataclass(frozen=True, slots=True)
class _Limit:
    """What a container may take, and has taken, in bytes."""

    most: int
    used: int


def machine_memory(set_bytes: int | None = None) -> MachineMemory:
    """Ask the system; `set_bytes` are what an operator lets models have."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if sys.platform == "darwin":
        percent = _free_percent_darwin()
        return MachineMemory(total, None if percent is None else total * percent // 100, set_bytes)
    if sys.platform != "linux":
        return MachineMemory(total, None, set_bytes)
    limits = [limit for limit in container_limits() if limit.most < total]
    free = [limit.most - limit.used for limit in limits]
    machine = _meminfo_bytes("MemAvailable")
    if machine is not None:
        free.append(machine)
    least = min([total, *(limit.most for limit in limits)])
    return MachineMemory(least, max(0, min(free)) if free else None, set_bytes)


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


def _free_percent_darwin() -> int | None:
    """Return what `memory_pressure` calls the free percentage of the system's memory, caches counted as free."""
    percent = ctypes.c_uint32()
    size = ctypes.c_size_t(ctypes.sizeof(percent))
    system = ctypes.CDLL("/usr/lib/libSystem.B.dylib")
    failed: int = system.sysctlbyname(b"kern.memorystatus_level", ctypes.byref(percent), ctypes.byref(size), None, 0)
    return None if failed else percent.value


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
