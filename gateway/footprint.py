"""How much memory a process holds that only its end gives back.

Clean pages of mapped files are not counted, nor is the resident size ever used: on macOS that misses what Metal holds,
on Linux it counts shared pages in full.

Sources: proc(5), `smaps_rollup`; `proc_pid_rusage` and `rusage_info_v0` in the headers of macOS (`sys/resource.h`).
"""

import contextlib
import ctypes
import sys
from pathlib import Path

RUSAGE_INFO_V0 = 0
ROLLUP_KEYS = frozenset({"Pss_Anon", "Pss_Shmem", "SwapPss"})


def footprint_bytes(pid: int) -> int | None:
    """Return the footprint of a process of this user, or None where it cannot be read (it may have ended)."""
    return _footprint_darwin(pid) if sys.platform == "darwin" else _footprint_linux(pid)


def parse_rollup(text: str) -> int | None:
    """Return the bytes of a `smaps_rollup` that are private or swapped, or None where it holds no such lines."""
    values = (line.split() for line in text.splitlines())
    found = [int(parts[1]) * 1024 for parts in values if parts and parts[0].rstrip(":") in ROLLUP_KEYS]
    return sum(found) if found else None


def _footprint_linux(pid: int) -> int | None:
    with contextlib.suppress(OSError):
        return parse_rollup(Path(f"/proc/{pid}/smaps_rollup").read_text("ascii"))
    return None


class _RusageInfoV0(ctypes.Structure):
    """`struct rusage_info_v0`."""

    _fields_ = (
        ("ri_uuid", ctypes.c_uint8 * 16),
        ("ri_user_time", ctypes.c_uint64),
        ("ri_system_time", ctypes.c_uint64),
        ("ri_pkg_idle_wkups", ctypes.c_uint64),
        ("ri_interrupt_wkups", ctypes.c_uint64),
        ("ri_pageins", ctypes.c_uint64),
        ("ri_wired_size", ctypes.c_uint64),
        ("ri_resident_size", ctypes.c_uint64),
        ("ri_phys_footprint", ctypes.c_uint64),
        ("ri_proc_start_abstime", ctypes.c_uint64),
        ("ri_proc_exit_abstime", ctypes.c_uint64),
    )


def _footprint_darwin(pid: int) -> int | None:
    system = ctypes.CDLL("/usr/lib/libSystem.B.dylib")
    usage = _RusageInfoV0()
    failed: int = system.proc_pid_rusage(ctypes.c_int(pid), ctypes.c_int(RUSAGE_INFO_V0), ctypes.byref(usage))
    return None if failed else int(usage.ri_phys_footprint)
