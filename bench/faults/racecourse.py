"""Where requests race unloads, loads race each other, and requests race the server's end: one round of each.

Requests come over a real channel through the real relay and the real keeper of workers. A round tells what was wrong:
an answer that is another model's, a status that should not have been, or no end within the limit.
"""

import asyncio
import contextlib
import dataclasses
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from bench.faults.quick_workers import NUM_MESSAGES, QuickWorker
from gateway.catalogue import CatalogueModel
from gateway.lifecycle import Event
from gateway.logs import LogRing
from gateway.model_status import Keeping, LoadOptions, ModelState
from gateway.relay import Relay
from tests.gateway.farm import MODELS, Farm
from tests.gateway.statuses import seen
from tests.support.scripted_worker import (
    METHODS,
    OPTIONS,
    UNARY_STREAM,
    UNARY_UNARY,
    ScriptedPool,
    catalogue,
    relay_parts,
    request,
)

LIMIT_S = 5.0
GRACE_S = 30.0
SPREAD_S = 0.006  # within which all of a round begins
IDLE_TTL_S = 0.005
REQUESTS_OF_IDLE = 3
Defect = Callable[["QuickFarm"], Any]
"""Puts something wrong around the keeper of a farm's workers."""


class QuickFarm(Farm):
    """Workers of two models that are servers in this process."""

    def __init__(self, folder: Path, dice: random.Random) -> None:
        """Begin with no worker."""
        self.dice = dice
        self.started: dict[str, list[QuickWorker]] = {model: [] for model in MODELS}
        super().__init__(folder)

    def start_worker(self, model: str, options: LoadOptions, post: Callable[[Event], None], *_more: Any) -> Any:
        """Start one."""
        del options
        worker = QuickWorker(model, post, self.dice)
        self.started[model].append(worker)
        return worker

    def are_gone(self, model: str) -> bool:
        """Say whether every worker that a model had so far, but the last, is gone."""
        return all(worker.is_gone for worker in self.started[model][:-1])


@dataclass
class Course:
    """A relay over workers, with a client's channel to it."""

    farm: QuickFarm
    parts: Any
    channel: grpc.aio.Channel
    dice: random.Random
    wrongs: list[str] = field(default_factory=list)

    async def ask(self, model: str, allowed: frozenset[str] = frozenset()) -> str:
        """Send a request; return its reason or code, empty where it was served, and note what should not be."""
        try:
            async with asyncio.timeout(LIMIT_S + 1):
                answers = await self._answers(model)
        except grpc.aio.AioRpcError as error:
            failure = seen(error)
            outcome = failure.reason or failure.code.name
        except TimeoutError:
            outcome = "no end"
        else:
            outcome = "" if answers in ([model.encode()], [model.encode()] * NUM_MESSAGES) else f"answered {answers}"
        if outcome and outcome not in allowed:
            self.wrongs.append(f"a request: {outcome}")
        return outcome

    async def _answers(self, model: str) -> list[bytes]:
        body = request(model)
        if self.dice.random() < 0.5:
            return [await self.channel.unary_unary(UNARY_UNARY)(body, timeout=LIMIT_S)]
        call: Any = self.channel.unary_stream(UNARY_STREAM)(body, timeout=LIMIT_S)
        return [message async for message in call]

    async def within(self, name: str, work: Awaitable[Any]) -> Any:
        """Wait for something that must come to an end."""
        try:
            async with asyncio.timeout(LIMIT_S):
                return await work
        except TimeoutError:
            self.wrongs.append(f"{name}: no end")
            return None

    async def soon(self, work: Callable[[], Awaitable[Any]]) -> None:
        """Begin something at some instant of the round."""
        await asyncio.sleep(self.dice.uniform(0.0, SPREAD_S))
        await work()


@contextlib.asynccontextmanager
async def course(
    folder: Path, dice: random.Random, defect: Defect | None = None, idle_ttl_s: float | None = None
) -> AsyncGenerator[Course]:
    """Serve over a new keeper of workers, with or without something wrong around it.

    Args:
        folder: for what it needs.
        dice: decide what happens when.
        defect: what is wrong.
        idle_ttl_s: after how long a model goes that nobody uses; None: it stays.
    """
    farm = QuickFarm(folder, dice)
    farm.workers_with(keeping=lambda _: Keeping(idle_ttl_s=idle_ttl_s))
    await farm.workers.start()
    models = [CatalogueModel(model, Path(__file__)) for model in MODELS]
    workers = defect(farm) if defect is not None else farm.workers
    parts = dataclasses.replace(relay_parts(ScriptedPool(), LogRing(10)), catalogue=catalogue(*models), workers=workers)
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    server.add_generic_rpc_handlers((Relay(METHODS, parts),))
    address = f"unix:{folder / 'gateway.sock'}"
    server.add_insecure_port(address)
    await server.start()
    channel = grpc.aio.insecure_channel(address, options=(*OPTIONS, ("grpc.use_local_subchannel_pool", 1)))
    try:
        yield Course(farm, parts, channel, dice)
    finally:
        await channel.close(None)
        await farm.workers.stop(0.0)
        await server.stop(None)
        farm.sockets.close()


async def unload_and_request(one: Course, model: str) -> None:
    """Have requests meet an unload: each is served by the old or by the next worker."""

    async def unload() -> None:
        await one.within("an unload", one.parts.workers.unload(model, GRACE_S))
        if not one.farm.are_gone(model):
            one.wrongs.append("an unload: a worker is there still")

    requests = [one.soon(lambda: one.ask(model)) for _ in range(one.dice.randrange(1, 4))]
    unloads = [one.soon(unload) for _ in range(one.dice.randrange(1, 3))]
    await asyncio.gather(*requests, *unloads)


async def load_and_load(one: Course, model: str) -> None:
    """Have loads and requests meet where there is no worker: one is started, and all have it."""
    before = len(one.farm.started[model])

    async def load() -> None:
        status = await one.within("a load", one.parts.workers.load(model, None, wait=True))
        if status is not None and status.state is not ModelState.ACTIVE:
            one.wrongs.append(f"a load: {status.state.name}")

    loads = [one.soon(load) for _ in range(one.dice.randrange(2, 5))]
    await asyncio.gather(*loads, one.soon(lambda: one.ask(model)))
    started = len(one.farm.started[model]) - before
    if started != 1:
        one.wrongs.append(f"loads: {started} workers")
    await one.within("an unload", one.parts.workers.unload(model, GRACE_S))


async def idle_and_request(one: Course, model: str) -> None:
    """Have requests come about when the model goes because nobody used it: each is served, by the old or the next."""
    for _ in range(REQUESTS_OF_IDLE):
        await one.ask(model)
        await asyncio.sleep(one.dice.uniform(0.0, 2 * IDLE_TTL_S))


async def drain_and_request(one: Course, model: str) -> None:
    """Have requests meet the end of the server: each is served, or told that the server ends."""

    async def drain() -> None:
        one.parts.admission.close()
        if not await one.parts.requests.until_empty(LIMIT_S):
            one.wrongs.append("a drain: requests are left")
        await one.within("the end", one.parts.workers.stop(0.0))

    requests = [
        one.soon(lambda: one.ask(model, frozenset({"SERVER_DRAINING"}))) for _ in range(one.dice.randrange(1, 5))
    ]
    await asyncio.gather(*requests, one.soon(drain))
