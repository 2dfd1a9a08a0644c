"""The threads of this process, for tests of what starts some; Linux."""

import sys
from pathlib import Path

import pytest

only_where_told = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def threads() -> set[str]:
    """Return the numbers of the threads: those of other tests may end at any moment, so counts say little."""
    return {task.name for task in Path("/proc/self/task").iterdir()}
