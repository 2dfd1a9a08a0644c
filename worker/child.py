"""A child of the worker, in which what comes from others runs: started, asked, killed.

One renders chat templates, and one tries grammars. The first for templates is started before anything heavy is
imported, so that it is ready by the time the model is. What such a process lives within is in `worker.confinement`.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from typing import Any

from worker.confinement import LENGTH
from worker.lifeline import LIFELINE_FD

# What such a process runs.
TEMPLATES = "worker.template_child"
TRIALS = "worker.constraints.trial_child"
REAP_TIMEOUT_S = 2.0
EXIT_TIMEOUT_S = 1.0
REAP_INTERVAL_S = 0.002


class Child:
    """One such process: the socket to it, and the pipe that it ends with.

    Attributes:
        pid: its process id.
    """

    def __init__(self, pid: int, conversation: socket.socket, lifeline: int) -> None:
        self.pid = pid
        self._conversation = conversation
        self._lifeline = lifeline
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    @classmethod
    def spawn(cls, module: str) -> "Child":
        """Start a child in this process's group.

        Args:
            module: of ours, that it runs.

        Raises:
            OSError: the system starts none.
        """
        ours, theirs = socket.socketpair()
        watched, lifeline = os.pipe()
        try:
            pid = _spawn(module, theirs.fileno(), watched)
        except OSError:
            ours.close()
            os.close(lifeline)
            raise
        finally:
            theirs.close()
            os.close(watched)
        return cls(pid, ours, lifeline)

    @property
    def is_gone(self) -> bool:
        """Whether it has closed its end."""
        return self._streams is not None and self._streams[0].at_eof()

    async def ask(self, request: bytes, timeout_s: float) -> dict[str, Any]:
        """Send one message and return the answer.

        Raises:
            TimeoutError: none came within `timeout_s`.
            EOFError: the child ended instead.
            OSError: the child had ended before.
        """
        async with asyncio.timeout(timeout_s):
            if self._streams is None:
                self._streams = await asyncio.open_unix_connection(sock=self._conversation)
            reader, writer = self._streams
            writer.write(LENGTH.pack(len(request)) + request)
            await writer.drain()
            size: int = LENGTH.unpack(await reader.readexactly(LENGTH.size))[0]
            return json.loads(await reader.readexactly(size))

    async def end(self) -> int | None:
        """Kill the child unless it has ended, and wait until it is gone, which is a matter of milliseconds.

        Returns:
            The signal that ended it; None where it ended by itself, or nothing is known.
        """
        status: int | None = None
        try:
            # One that has closed its end is about to exit: how it does shall be its own doing.
            status = await self._exit_status(EXIT_TIMEOUT_S) if self.is_gone else None
        finally:
            self._close()
            if status is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
        if status is None:
            status = await self._exit_status(REAP_TIMEOUT_S)
        return os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None

    def _close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
        self._conversation.close()
        os.close(self._lifeline)

    async def _exit_status(self, timeout_s: float) -> int | None:
        """Wait for the end of the process and return how it ended; None where nothing is known."""
        status: int | None = None
        with contextlib.suppress(TimeoutError, ChildProcessError):
            async with asyncio.timeout(timeout_s):
                while (status := _exit_status(self.pid)) is None:  # noqa: ASYNC110  (no event comes without a child watcher)
                    await asyncio.sleep(REAP_INTERVAL_S)
        return status


def _spawn(module: str, conversation: int, watched: int) -> int:
    """Start the program with its two descriptors and none of our environment, and return its process id."""
    actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
        (os.POSIX_SPAWN_DUP2, conversation, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
    ]
    if watched == LIFELINE_FD:
        os.set_inheritable(watched, True)
    else:
        actions.append((os.POSIX_SPAWN_DUP2, watched, LIFELINE_FD))
    command = [sys.executable, "-P", "-m", module]
    return os.posix_spawn(sys.executable, command, {}, file_actions=actions)


def _exit_status(pid: int) -> int | None:
    reaped, status = os.waitpid(pid, os.WNOHANG)
    return status if reaped == pid else None
