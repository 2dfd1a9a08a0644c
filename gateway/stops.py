"""Which signals ask the server to stop, and how often they did."""

from __future__ import annotations

import asyncio
import signal

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stops:
    """How often the process was asked to stop.

    Attributes:
        first: is set once it was.
        second: is set once it was again.
    """

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()

    def begin(self) -> None:
        """Listen to the signals on the running loop."""
        for number in STOP_SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self.ask)

    def end(self) -> None:
        """Listen no more."""
        for number in STOP_SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)

    def ask(self) -> None:
        """Ask the server to stop, or to hurry."""
        if self.first.is_set():
            self.second.set()
        self.first.set()

    async def asked_before(self, watching: asyncio.Task[None]) -> bool:
        """Wait until the process is asked to stop or `watching` ends; say whether it was asked."""
        asked = asyncio.create_task(self.first.wait())
        try:
            await asyncio.wait([asked, watching], return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
        return self.first.is_set()
