"""A pull as whoever ordered it sees it: a child process that is watched, and killed when nobody wants it any more."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from structlog.typing import FilteringBoundLogger

from gateway.errors import CheckpointCorrupt, CheckpointRejected, GatewayError, ModelLoadFailed
from gateway.hub.messages import Done, Failed, Kind, Order, Progress, read_message
from gateway.process import Child, Command, ProcessError, spawn
from gateway.pull_errors import DiskFull, HubUnreachable, RepositoryForbidden, RepositoryNotFound

PULL_COMMAND = (sys.executable, "-P", "-m", "gateway.hub")
REAP_LIMIT_S = 5.0
PASSED_NAMES = frozenset({"PATH", "HOME", "LANG", "TMPDIR", "XDG_CACHE_HOME", "TRANSFORMERS_OFFLINE"})
PASSED_PREFIXES = ("HF_", "HUGGINGFACE_", "LC_", "SSL_CERT_")
PASSED_ENDING = "_PROXY"
# One way to download, that can be continued; no bars but ours, and nobody is told what is pulled but the hub.
FIXED = {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}

OnProgress = Callable[[Progress], None]


def pull_command(environment: Mapping[str, str], cache: Path, argv: tuple[str, ...] = PULL_COMMAND) -> Command:
    """Return the program of a pull into `cache`, with what it may see of this process's environment."""
    passed = {
        name: value
        for name, value in environment.items()
        if name in PASSED_NAMES or name.startswith(PASSED_PREFIXES) or name.upper().endswith(PASSED_ENDING)
    }
    return Command(argv, passed | FIXED | {"HF_HUB_CACHE": str(cache), "PYTHONUNBUFFERED": "1"})


@dataclass(frozen=True, slots=True)
class Downloader:
    """Runs pulls.

    Attributes:
        command: the program of one.
        log: takes what one says when it fails unexpectedly.
    """

    command: Command
    log: FilteringBoundLogger

    async def run(self, order: Order, on_progress: OnProgress) -> Done:
        """Pull, and return what came of it; to cancel this kills the process, and what came is kept.

        Raises:
            GatewayError: it cannot be had.
        """
        ends: list[Done | Failed] = []

        def take(stream: str, line: str) -> None:
            message = read_message(line) if stream == "stdout" else None
            if isinstance(message, Progress):
                on_progress(message)
            elif message is not None:
                ends.append(message)

        try:
            child = spawn(self.command, order.line(), take)
        except ProcessError as error:
            self.log.warning("pull not started", repository=order.repository, problem=str(error))
            raise ModelLoadFailed(order.model, "no process could be started to download it.") from error
        await _until_gone(child)
        match ends:
            case [Done() as done]:
                return done
            case [Failed() as failed]:
                raise _told(order, failed)
            case _:
                self.log.error("pull failed unexpectedly", repository=order.repository, exit=child.exit.result())
                raise ModelLoadFailed(order.model, "its download failed unexpectedly; the server's log says more.")


async def _until_gone(child: Child) -> None:
    try:
        await asyncio.shield(child.exit)
    finally:
        child.signal_group(signal.SIGKILL)
        await child.wait(REAP_LIMIT_S)


def _told(order: Order, failed: Failed) -> GatewayError:
    if failed.kind is Kind.DISK_FULL:
        return DiskFull(order.repository, **failed.facts)
    about_hub = {
        Kind.NOT_FOUND: RepositoryNotFound,
        Kind.FORBIDDEN: RepositoryForbidden,
        Kind.UNREACHABLE: HubUnreachable,
    }
    if failed.kind in about_hub:
        return about_hub[failed.kind](order.repository, failed.problem)
    about_files = {Kind.UNUSABLE: CheckpointRejected, Kind.CORRUPT: CheckpointCorrupt}
    return about_files.get(failed.kind, ModelLoadFailed)(order.repository, f"{failed.problem}.")
