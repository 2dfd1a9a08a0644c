"""How a process grows while the same is done again and again: memory, open files, threads, children."""

import contextlib
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.load.verdicts import MIB, Verdict
from gateway.footprint import footprint_bytes

WARM_UP = 0.1  # of the samples: pools and caches fill, and code is compiled


@dataclass(frozen=True, slots=True)
class Size:
    """What a process holds at one moment; the last three are 0 where the system does not tell.

    Attributes:
        done: how often the thing was done by then.
        footprint_bytes: memory of its own.
        files: open descriptors.
        threads: of the process.
        children: processes that it started and that are there, or wait to be reaped.
    """

    done: int
    footprint_bytes: int
    files: int = 0
    threads: int = 0
    children: int = 0


def size_of(pid: int, done: int) -> Size:
    """Measure a process of this user."""
    footprint = footprint_bytes(pid) or 0
    if sys.platform != "linux":
        return Size(done, footprint)
    home = Path(f"/proc/{pid}")
    tasks = list((home / "task").iterdir())
    num_children = sum(len(_text(task / "children").split()) for task in tasks)
    return Size(done, footprint, len(list((home / "fd").iterdir())), len(tasks), num_children)


def _text(path: Path) -> str:
    """Return what a file says; a thread that has ended meanwhile says nothing."""
    with contextlib.suppress(OSError):
        return path.read_text()
    return ""


class Samples:
    """Sizes of a process, taken each time that enough was done since the last."""

    def __init__(self, pid: int, total: int, count: int = 100) -> None:
        """Begin; `total` is how often the thing will be done, `count` how many samples there will be of it."""
        self.sizes: list[Size] = []
        self._pid = pid
        self._step = max(1, total // count)
        self._lock = threading.Lock()

    def note(self, done: int) -> None:
        """Take a sample where it is time for one."""
        with self._lock:
            if done >= self._step * len(self.sizes):
                self.sizes.append(size_of(self._pid, done))


@dataclass(frozen=True, slots=True)
class Growth:
    """How far a process may grow after its warm-up.

    Attributes:
        total_bytes: in all.
        late_bytes: in the last half, by the line through its samples.
        files: how many more may be open at the end; a pool may hold a few.
        threads: how many more may run.
    """

    total_bytes: int
    late_bytes: int
    files: int = 4
    threads: int = 4


def judge(sizes: Sequence[Size], allowed: Growth) -> list[Verdict]:
    """Hold the samples of a run against what is allowed; the last is to be taken when all is over."""
    settled = sizes[int(len(sizes) * WARM_UP) :]
    first, last = settled[0], settled[-1]
    grown, late = last.footprint_bytes - first.footprint_bytes, late_growth(settled)
    early = settled[: len(settled) // 2 + 1]  # at some moment of which the process did nothing
    files, threads = last.files - min(one.files for one in early), last.threads - min(one.threads for one in early)
    return [
        Verdict(
            f"memory grows by at most {allowed.total_bytes / MIB:.0f} MiB",
            grown <= allowed.total_bytes,
            f"{grown / MIB:.1f} MiB from {first.footprint_bytes / MIB:.1f}",
        ),
        Verdict(
            f"it is flat in the last half (at most {allowed.late_bytes / MIB:.0f} MiB)",
            late <= allowed.late_bytes,
            f"{late / MIB:+.1f} MiB",
        ),
        Verdict(f"at most {allowed.files} more files are open", files <= allowed.files, f"{files:+d} of {last.files}"),
        Verdict(f"at most {allowed.threads} more threads run", threads <= allowed.threads, f"{threads:+d}"),
        Verdict("no process is left", last.children == 0, f"{last.children} of {max(one.children for one in sizes)}"),
    ]


def late_growth(sizes: Sequence[Size]) -> float:
    """Return by how many bytes the line of least squares through the last half rises along it."""
    half = sizes[len(sizes) // 2 :]
    if len(half) < 2:
        return 0.0
    mean_x = sum(one.done for one in half) / len(half)
    mean_y = sum(one.footprint_bytes for one in half) / len(half)
    spread = sum((one.done - mean_x) ** 2 for one in half)
    rise = sum((one.done - mean_x) * (one.footprint_bytes - mean_y) for one in half)
    return rise / spread * (half[-1].done - half[0].done) if spread else 0.0
