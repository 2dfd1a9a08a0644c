"""Prepares this process for its model, in the order that matters: logs, stack dumps, BLAS, only then MLX and gRPC."""

import asyncio
import faulthandler
import logging
import signal
import sys

from native import blas
from worker import logs, turn_line
from worker.child import TEMPLATES, Child
from worker.settings import WorkerSettings

log = logging.getLogger(__name__)


def run(settings: WorkerSettings) -> int:
    """Run the worker and return the exit code of the process."""
    logs.configure(settings.log_level)
    turn_line.keep_private()
    # Threads that hang are shown by the gateway's SIGUSR1, whatever Python is busy with.
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)
    child = _spawn_child()
    _load_blas(settings.compute_threads)
    return _runner().run(_serve(settings, child))


def _load_blas(threads: int | None) -> None:
    try:
        info = blas.load(threads)
    except blas.BlasError as error:
        log.warning("MLX computes with its own slow BLAS: %s", error)
    else:
        if info is not None:
            log.info("BLAS loaded", extra={"library": info.library, "core": info.core, "threads": info.threads})


def _spawn_child() -> Child | None:
    try:
        return Child.spawn(TEMPLATES)
    except OSError:
        log.exception("template child was not started")
        return None


async def _serve(settings: WorkerSettings, child: Child | None) -> int:
    from worker.kinds import make_hosting  # noqa: PLC0415  (both import MLX, so only after the BLAS)
    from worker.server import WorkerServer  # noqa: PLC0415

    return await WorkerServer(settings, make_hosting(settings, child)).run()


def _runner() -> asyncio.Runner:
    """Return a runner on uvloop where that is installed."""
    try:
        import uvloop  # noqa: PLC0415
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)
