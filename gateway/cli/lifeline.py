"""Ends a server together with the process that started it for its own use."""

import os
import signal
import threading

# Running requests belong to the parent that is gone, so they end as soon as the server sees that.
LIMIT_S = 10.0


def end_with_parent(fd: int) -> None:
    """Stop this process when the other end of the pipe `fd` closes.

    SIGTERM comes first, and an exit without ceremony where that does not help. Workers end by lifelines of their own.
    """
    threading.Thread(target=_watch, args=(fd,), name="lifeline", daemon=True).start()


def _watch(fd: int) -> None:
    while os.read(fd, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(LIMIT_S)
    os._exit(1)
