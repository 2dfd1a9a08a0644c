"""How a worker's process is brought to its end: asked first, killed last."""

import asyncio
import signal
from dataclasses import dataclass

from gateway.process import Child
from gateway.worker_link import WorkerLink

HURRIED_RUNG_S = 1.0


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


@dataclass(frozen=True, slots=True)
class Ending:
    """A worker on its way out.

    Attributes:
        child: its process.
        hurry: once set, no rung lasts longer than `HURRIED_RUNG_S`, the one that is stood on included.
    """

    child: Child
    hurry: asyncio.Event

    async def wait(self, timeout_s: float) -> bool:
        """Wait for the end of its process, as long as the rung lasts; say whether it is gone."""
        hurried = asyncio.ensure_future(self.hurry.wait())
        try:
            await asyncio.wait([self.child.exit, hurried], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if hurried.done():
                await asyncio.wait([self.child.exit], timeout=min(timeout_s, HURRIED_RUNG_S))
        finally:
            hurried.cancel()
        return self.child.exit.done()


async def ask_to_end(ending: Ending, link: WorkerLink, limits: StopLimits) -> bool:
    """Ask a worker to shut down, its requests to be ended at once.

    Returns:
        Whether its process is gone.
    """
    asked = asyncio.ensure_future(link.shutdown(0.0, limits.shutdown_s))
    waiting = asyncio.ensure_future(ending.wait(limits.shutdown_s))
    try:
        await asyncio.wait([waiting, asked], return_when=asyncio.FIRST_COMPLETED)
        if waiting.done() or not asked.result():
            return ending.child.exit.done()
        return await ending.wait(limits.shutdown_s)
    finally:
        asked.cancel()
        waiting.cancel()


async def dump_stacks(ending: Ending, limits: StopLimits) -> None:
    """Have a worker that stands still write its threads' stacks to its standard error."""
    ending.child.signal_leader(signal.SIGUSR1)
    await ending.wait(limits.dump_s)


async def force_to_end(ending: Ending, limits: StopLimits) -> bool:
    """Climb from SIGTERM to SIGKILL.

    Returns:
        Whether its process is gone.
    """
    child = ending.child
    child.signal_group(signal.SIGTERM)
    child.signal_group(signal.SIGCONT)  # A stopped process takes SIGTERM only when it runs again.
    if await ending.wait(limits.terminate_s):
        return True
    child.signal_group(signal.SIGINT)
    if await ending.wait(limits.interrupt_s):
        return True
    child.signal_group(signal.SIGKILL)
    return await child.wait(limits.reap_s) is not None
