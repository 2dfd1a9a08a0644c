"""A server for the length of a block: a process of its own, on a free port, that cannot outlive this one."""

import asyncio
import concurrent.futures
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from gateway.cli.failures import SetupError
from gateway.process import LIFELINE_FD, Child, Command, spawn

START_LIMIT_S = 30.0
STOP_LIMIT_S = 20.0
KILL_LIMIT_S = 5.0
# The bound of every wait on the loop's thread; each coroutine has a shorter limit of its own.
CALL_LIMIT_S = START_LIMIT_S + STOP_LIMIT_S + KILL_LIMIT_S
GREETING = "listening on "
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Running:
    """A server that takes calls at `address`; `kill` ends it with SIGKILL."""

    address: str
    kill: Callable[[], None]


@contextmanager
def own_server(arguments: Sequence[str], environment: Mapping[str, str]) -> Generator[Running]:
    """Run `pomona serve` with `arguments` for the length of the block.

    Raises:
        SetupError: it did not start; the text has its last words.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="own-server", daemon=True)
    thread.start()
    server = _OwnServer()
    try:
        yield Running(_call(loop, server.start(arguments, environment)), server.kill)
    finally:
        _call(loop, server.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(KILL_LIMIT_S)
        loop.close()


def _call(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Result]) -> Result:
    """Run `work` on the loop's thread; Ctrl-C here cancels it there."""
    future = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        return future.result(CALL_LIMIT_S)
    except (KeyboardInterrupt, concurrent.futures.TimeoutError):
        future.cancel()
        raise


class _OwnServer:
    def __init__(self) -> None:
        self._child: Child | None = None

    async def start(self, arguments: Sequence[str], environment: Mapping[str, str]) -> str:
        address: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def take(stream: str, line: str) -> None:
            if stream == "stdout" and line.startswith(GREETING) and not address.done():
                address.set_result(line.removeprefix(GREETING))

        argv = (sys.executable, "-P", "-m", "gateway", "serve", "--lifeline-fd", str(LIFELINE_FD), *arguments)
        self._child = spawn(Command(argv, environment), b"", take)
        await asyncio.wait([address, self._child.exit], timeout=START_LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
        if address.done():
            return address.result()
        if self._child.exit.done():
            words = self._child.exit.result().last_lines
            raise SetupError("the server did not start: " + (words[-1] if words else "it said nothing"))
        raise SetupError(f"the server did not start within {START_LIMIT_S:g} s")

    def kill(self) -> None:
        if self._child is not None:
            self._child.signal_leader(signal.SIGKILL)

    async def stop(self) -> None:
        if self._child is None:
            return
        for number, limit_s in ((signal.SIGTERM, STOP_LIMIT_S), (signal.SIGKILL, KILL_LIMIT_S)):
            self._child.signal_group(number)
            if await self._child.wait(limit_s) is not None:
                return
