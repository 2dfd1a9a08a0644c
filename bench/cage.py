"""A memory cgroup for the processes of one measurement: what they hold together has a hard limit, and is told apart.

By cgroup v1 or v2, whichever the machine mounts with a memory controller; needs the right to make one. Pages of a file
are counted with whoever read them first, so a file must be forgotten before a run that is to be cold.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_ROOT = Path("/sys/fs/cgroup")


class CageError(Exception):
    """Raised where no cgroup can be made; says what is missing."""


class Held(NamedTuple):
    """What a cage's processes hold, in bytes: memory of their own, and pages of files."""

    anonymous: int
    cached: int


@dataclass(frozen=True)
class Cage:
    """A cgroup.

    Attributes:
        folder: of its files.
        is_v2: whose files they are.
    """

    folder: Path
    is_v2: bool

    def held(self) -> Held:
        """Return what is held now."""
        stat = dict(line.split() for line in (self.folder / "memory.stat").read_text().splitlines())
        own, files = ("anon", "file") if self.is_v2 else ("total_rss", "total_cache")
        return Held(int(stat[own]), int(stat[files]))

    @contextmanager
    def entered(self) -> Generator[None]:
        """Let processes that this one starts in the block be in the cage; this one is out again after it."""
        before = _own_group(is_v2=self.is_v2)
        _move(self.folder)
        try:
            yield
        finally:
            _move(before)


@contextmanager
def cage(limit_bytes: int) -> Generator[Cage]:
    """Make a cage for the length of a block; all that ran in it must have ended by then.

    Raises:
        CageError: there is no memory controller, or no right to make a group.
    """
    is_v2 = not (_ROOT / "memory").is_dir()
    folder = (_ROOT if is_v2 else _ROOT / "memory") / f"pomona-{os.getpid()}"
    try:
        folder.mkdir()
        limit = folder / ("memory.max" if is_v2 else "memory.limit_in_bytes")
        limit.write_text(str(limit_bytes))
    except OSError as error:
        raise CageError(f"no memory cgroup can be made: {error.strerror}") from error
    try:
        yield Cage(folder, is_v2)
    finally:
        folder.rmdir()


def _own_group(*, is_v2: bool) -> Path:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if is_v2 and not controllers:
            return _ROOT / path.lstrip("/")
        if not is_v2 and "memory" in controllers.split(","):
            return _ROOT / "memory" / path.lstrip("/")
    raise CageError("this process is in no memory cgroup")


def _move(group: Path) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()))
