"""Runs a server until a signal ends it, and tells the service manager how it is."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from functools import partial

from gateway.hang_ups import HangUps
from gateway.log_output import library_lines
from gateway.notify import Notifier
from gateway.server import Gateway
from gateway.settings import Settings, process_environment
from gateway.stops import Stops


class ServerBroken(Exception):
    """Raised when a part without which no model can be loaded ended by itself."""


async def serve(
    settings: Settings, announce: Callable[[str], None], reload: Callable[[], Settings] | None = None
) -> None:
    """Serve until SIGTERM or SIGINT, let running requests finish, and return when every worker is gone.

    SIGHUP has the settings read again, unless it tells that the terminal is gone: that is an end. One that is ignored
    already, as nohup has it, stays ignored.

    Args:
        settings: all of them.
        announce: is called once with the address, as soon as RPCs are accepted.
        reload: reads the settings again when the catalogue is refreshed; None: they stay as they are.

    Raises:
        ListenError: the server cannot listen where it was told to.
        SettingsError: two models share a name, or a name is none that a client could send.
        ServerBroken: a part without which no model can be loaded ended by itself; the process had better begin anew.
    """
    gateway = Gateway(settings, reload=reload)
    notifier = Notifier(process_environment(), gateway.log)
    stops = Stops()
    stops.begin()
    hang_ups = HangUps(partial(_reload, gateway, notifier), stops.ask)
    hang_ups.begin()
    watching: asyncio.Task[None] | None = None
    with library_lines(gateway.log):
        try:
            announce(await gateway.start())
            hang_ups.ready()
            notifier.ready(gateway.status())
            watching = asyncio.create_task(notifier.watch(gateway.is_sound, gateway.status), name="watchdog")
            if not await stops.asked_before(watching):
                gateway.log.error("no event of a worker is applied any more", exc_info=gateway.failure)
                raise ServerBroken
            notifier.stopping(gateway.longest_stop_s)
            await gateway.drain_or_hurry(stops.second)
        finally:
            hang_ups.end()
            await gateway.stop(stops.second)
            if watching is not None:
                watching.cancel()
            notifier.close()
            stops.end()
            asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)


async def _reload(gateway: Gateway, notifier: Notifier) -> None:
    notifier.reloading(time.monotonic())
    try:
        await gateway.reload()
    except Exception:  # whatever it was, the next signal is to be heard
        gateway.log.exception("reload broke off")
    finally:
        notifier.ready(gateway.status())
