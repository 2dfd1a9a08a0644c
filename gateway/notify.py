"""Tells the service manager how the server is, where it asked for that: systemd's datagrams.

A datagram never waits: what the manager does not take at once is sent again with the next beat. The watchdog is fed
from the event loop, so a loop that stands still feeds it no more.

Source: sd_notify(3), systemd.service(5).
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping

from structlog.typing import FilteringBoundLogger

LONGEST_BEAT_S = 5.0  # also where no watchdog waits: what is watched is more than that
BEATS_IN_TIME = 3  # of the watchdog's time
MAX_STATUS_CHARS = 200


class Notifier:
    """The way to the service manager; where there is none, or it cannot be reached, telling it is nothing.

    Args:
        environment: of this process: NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID are read.
        log: is told once where the manager asked and cannot be reached.
    """

    def __init__(self, environment: Mapping[str, str], log: FilteringBoundLogger) -> None:
        self._log = log
        self._address = _address(environment.get("NOTIFY_SOCKET", ""))
        self._socket: socket.socket | None = None
        self._unsent = ""
        self._status = ""
        self.watchdog_s = _watchdog_s(environment) if self._address else None
        if self._address is not None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)

    @property
    def beat_s(self) -> float:
        """How often `watch` looks, in seconds."""
        return LONGEST_BEAT_S if self.watchdog_s is None else min(LONGEST_BEAT_S, self.watchdog_s / BEATS_IN_TIME)

    def ready(self, status: str) -> None:
        """Tell that RPCs are accepted, also again after `reloading`."""
        self._tell("READY=1", f"STATUS={self._changed(status)}")

    def reloading(self, now_s: float) -> None:
        """Tell that settings are read again; `now_s` is the monotonic clock, in seconds. `ready` must follow."""
        self._tell("RELOADING=1", f"MONOTONIC_USEC={round(now_s * 1e6)}")

    def stopping(self, longest_s: float) -> None:
        """Tell that the server stops, and that this may take so many seconds."""
        self._tell("STOPPING=1", "STATUS=stopping", f"EXTEND_TIMEOUT_USEC={round(longest_s * 1e6)}")

    async def watch(self, is_sound: Callable[[], bool], status: Callable[[], str]) -> None:
        """Feed the watchdog and tell changes of the status, until something is not sound: then return.

        Args:
            is_sound: whether what the server cannot be without still works.
            status: what it does, in a few words; holds nothing of requests.
        """
        while is_sound():
            words = () if (text := status()) == self._status else (f"STATUS={self._changed(text)}",)
            beat = () if self.watchdog_s is None else ("WATCHDOG=1",)
            if beat or words or self._unsent:
                self._tell(*beat, *words)
            await asyncio.sleep(self.beat_s)

    def close(self) -> None:
        """Tell nothing more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _changed(self, status: str) -> str:
        self._status = status
        return " ".join(status.split())[:MAX_STATUS_CHARS]

    def _tell(self, *lines: str) -> None:
        if self._socket is None or self._address is None:
            return
        text = "\n".join(line for line in (self._unsent, *lines) if line)
        self._unsent = ""
        try:
            self._socket.sendto(text.encode(), self._address)
        except BlockingIOError:
            # A beat is of its moment; what has changed must still come.
            self._unsent = "\n".join(line for line in text.split("\n") if line != "WATCHDOG=1")
        except OSError as error:
            self._log.warning("the service manager cannot be told anything", cause=error.strerror)
            self.close()


def _address(text: str) -> str | None:
    """Return the address of a Unix socket, None where there is none; `@` begins a name that is no file."""
    if text.startswith("/"):
        return text
    return f"\0{text[1:]}" if text.startswith("@") else None


def _watchdog_s(environment: Mapping[str, str]) -> float | None:
    """Return within which time the manager wants a beat, in seconds; None where it wants none of this process."""
    time_us, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not time_us.isdecimal() or int(time_us) == 0 or (pid and pid != str(os.getpid())):
        return None
    return int(time_us) / 1e6
