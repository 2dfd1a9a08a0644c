"""How a worker's process is brought to its end: asked first, killed last."""

import asyncio
import signal
from dataclasses import dataclass

from gateway.process import Child
from gateway.worker_link import WorkerLink


@dataclass(frozen=True, slots=True)
class StopLimits:
    """How long each rung of the ladder lasts, in seconds.

    Attributes:
        shutdown_s: from the request to shut down to the end of the process.
        dump_s: for the stack dump of a worker that stalled.
        terminate_s: from SIGTERM on.
        interrupt_s: from SIGINT on.
        reap_s: from SIGKILL on.
        own_end_s: for a worker that said that its load failed.
    """

    shutdown_s: float = 10.0
    dump_s: float = 1.0
    terminate_s: float = 10.0
    interrupt_s: float = 5.0
    reap_s: float = 5.0
    own_end_s: float = 5.0


async def ask_to_end(child: Child, link: WorkerLink, limits: StopLimits) -> bool:
    """Ask a worker to shut down, its requests to be ended at once.

    Returns:
        Whether its process is gone.
    """
    asked = asyncio.ensure_future(link.shutdown(0.0, limits.shutdown_s))
    try:
        await asyncio.wait([child.exit, asked], timeout=limits.shutdown_s, return_when=asyncio.FIRST_COMPLETED)
        if child.exit.done() or (asked.done() and not asked.result()):
            return child.exit.done()
        return await child.wait(limits.shutdown_s) is not None
    finally:
        asked.cancel()


async def dump_stacks(child: Child, limits: StopLimits) -> None:
    """Have a worker that stands still write its threads' stacks to its standard error."""
    child.signal_leader(signal.SIGUSR1)
    await child.wait(limits.dump_s)


async def force_to_end(child: Child, limits: StopLimits) -> bool:
    """Climb from SIGTERM to SIGKILL.

    Returns:
        Whether its process is gone.
    """
    child.signal_group(signal.SIGTERM)
    child.signal_group(signal.SIGCONT)  # A stopped process takes SIGTERM only when it runs again.
    if await child.wait(limits.terminate_s) is not None:
        return True
    child.signal_group(signal.SIGINT)
    if await child.wait(limits.interrupt_s) is not None:
        return True
    child.signal_group(signal.SIGKILL)
    return await child.wait(limits.reap_s) is not None
