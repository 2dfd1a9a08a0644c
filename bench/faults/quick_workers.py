"""Workers that live in this process and start within a millisecond, for races that no thousand processes could run.

Each is a real server on a socket of its own, as a worker is; only its process is missing. It ends as a worker does:
what runs in it when it is told to end is cut off, and its end is told last.
"""

import asyncio
import random
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from pomona.v1 import model_pb2, server_pb2

from gateway.lifecycle import Event, Exited, Ready
from gateway.model_status import Exit, ExitCause, Instance
from tests.support.scripted_worker import BEGUN, UNARY_STREAM, UNARY_UNARY, ScriptedWorker

NUM_MESSAGES = 3
LONGEST_START_S = 0.003
LONGEST_END_S = 0.002


class QuickWorker:
    """Stands where a supervisor does: starts a server for a model, tells that it is ready, and ends it."""

    longest_stop_s = 5.0
    left_process = None  # there is none

    def __init__(self, model: str, post: Callable[[Event], None], dice: random.Random) -> None:
        """Begin to start; everything follows by itself."""
        self.instance_id = secrets.token_hex(6)
        self.start_time_s = time.time()
        self.instance: Instance | None = None
        self.stats = server_pb2.ModelStats(model=model)
        self.freed_bytes = 0
        self.is_gone = False
        self._model = model
        self._post = post
        self._dice = dice
        self._stop_asked = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"quick worker of {model}")

    def stop(self) -> None:
        """Begin to end."""
        self._stop_asked.set()

    def hurry(self) -> None:
        """Do nothing: no end is sooner."""

    async def close(self, timeout_s: float) -> None:
        """Wait until it is gone."""
        await asyncio.wait([self._task], timeout=timeout_s)

    async def _run(self) -> None:
        ended = Exit(ExitCause.UNLOADED, code=0)
        with tempfile.TemporaryDirectory(prefix="q-", dir="/tmp") as folder:
            worker = ScriptedWorker(Path(folder), {UNARY_UNARY: self._answer, UNARY_STREAM: self._stream})
            await asyncio.sleep(self._dice.uniform(0.0, LONGEST_START_S))
            if not self._stop_asked.is_set():
                self.instance = await worker.start()
                self._post(Ready(model_pb2.Model(model=self._model)))
                await self._stop_asked.wait()
                await asyncio.sleep(self._dice.uniform(0.0, LONGEST_END_S))
                await worker.die(ended)
            self.is_gone, self.freed_bytes = True, 1
            self._post(Exited(ended))
            await worker.stop()

    async def _answer(self, _body: bytes, context: Any) -> bytes:
        await context.send_initial_metadata(BEGUN)
        await asyncio.sleep(self._dice.uniform(0.0, LONGEST_END_S))
        return self._model.encode()

    async def _stream(self, _body: bytes, context: Any) -> AsyncIterator[bytes]:
        await context.send_initial_metadata(BEGUN)
        for _ in range(NUM_MESSAGES):
            await asyncio.sleep(self._dice.uniform(0.0, LONGEST_END_S))
            yield self._model.encode()
