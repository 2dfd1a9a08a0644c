"""Whether this process has a terminal: when that goes away it sends SIGHUP, which otherwise means something else."""

from __future__ import annotations

import os

TERMINAL = "/dev/tty"


def has_terminal() -> bool:
    """Say whether this process has a controlling terminal now."""
    try:
        os.close(os.open(TERMINAL, os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
