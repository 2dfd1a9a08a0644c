"""Ends this process, and the group it leads, when the process that started it is gone.

Imported before anything heavy, so it needs next to nothing itself. The pipe is watched in two ways: by a thread, which
works everywhere, and on Linux by the kernel, which also reaches a process that is stopped or computes without giving up
Python's lock.
"""

import os
import signal
import stat
import sys
import threading

LIFELINE_FD = 9


def arm(fd: int = LIFELINE_FD) -> None:
    """Begin to watch a pipe whose other end the parent holds; nothing is ever written to it.

    Programs that this one starts do not inherit it. Does nothing where `fd` is no pipe.

    Args:
        fd: the read end.
    """
    if not is_given(fd):
        return
    os.set_inheritable(fd, False)
    threading.Thread(target=_watch, args=(fd,), name="lifeline", daemon=True).start()
    if sys.platform == "linux":
        _arm_kernel(fd)


def is_given(fd: int = LIFELINE_FD) -> bool:
    """Whether there is a pipe, which is so where a gateway started this process."""
    try:
        return stat.S_ISFIFO(os.fstat(fd).st_mode)
    except OSError:
        return False


def _watch(fd: int) -> None:
    try:
        while os.read(fd, 64):
            pass
    finally:
        _end()


def _end() -> None:
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(LIFELINE_FD)


def _arm_kernel(fd: int) -> None:
    """Have the kernel send SIGKILL when the pipe closes (fcntl(2), F_SETSIG)."""
    import fcntl  # noqa: PLC0415  (only here, and only after the thread watches)

    leads_group = os.getpgrp() == os.getpid()
    try:
        fcntl.fcntl(fd, fcntl.F_SETOWN, -os.getpgrp() if leads_group else os.getpid())
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
    except OSError:
        return  # some sandboxes' kernels lack it; the thread still watches
    _end_if_closed(fd)


def _end_if_closed(fd: int) -> None:
    """End now if the pipe closed before the kernel was told to watch it."""
    import select  # noqa: PLC0415

    poll = select.poll()
    poll.register(fd, select.POLLIN)
    if any(events & select.POLLHUP for _, events in poll.poll(0)):
        _end()
