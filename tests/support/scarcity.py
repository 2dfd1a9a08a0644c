"""Makes this process poor in descriptors or threads, for tests of what a system that gives no more leads to."""

import contextlib
import os
import resource
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

FEW = 128


def open_descriptors() -> list[str]:
    """Return what is open, the listing's own descriptor included."""
    return sorted(path.name for path in Path("/dev/fd").iterdir())


@contextmanager
def descriptors_left(number: int) -> Generator[None]:
    """Let this process open no more than so many descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(FEW, *map(int, open_descriptors())) + 1, hard))
    taken: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        for fd in taken[len(taken) - number :]:
            os.close(fd)
        del taken[len(taken) - number :]
        yield
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def no_thread() -> Generator[None]:
    """Have the system start no thread, as it does at its limit of tasks."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        yield
