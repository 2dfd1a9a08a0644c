"""What SIGHUP means: read the settings again, or, where the terminal went away, the end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable

from gateway.terminal import has_terminal


class HangUps:
    """Listens to SIGHUP on the running loop; where it was ignored, as under nohup, it never means the end.

    Args:
        reload: reads the settings again; one at a time, and once more where another signal came meanwhile.
        end: is called where the terminal of this process is gone.
        has_terminal: says whether there is one.
    """

    def __init__(
        self,
        reload: Callable[[], Awaitable[None]],
        end: Callable[[], None],
        has_terminal: Callable[[], bool] = has_terminal,
    ) -> None:
        self._reload = reload
        self._end = end
        self._has_terminal = has_terminal
        self._had_terminal = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and has_terminal()
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Listen from now on; nothing is reloaded before `ready`."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.hung_up)

    def ready(self) -> None:
        """Reload from now on, at once where a signal came before."""
        self._task = asyncio.create_task(self._follow(), name="reload")

    def end(self) -> None:
        """Reload no more: the server is about to end, and the signal does nothing."""
        if self._task is not None:
            self._task.cancel()

    def hung_up(self) -> None:
        """Do what the signal means."""
        if self._had_terminal and not self._has_terminal():
            self._end()
        else:
            self._wanted.set()

    async def _follow(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            await self._reload()
