"""Rounds in which workers die under requests, with the second attempt and the quarantine on or off.

A gateway in this process, workers that are real processes and follow a script, and one judge for all rounds: what it
finds wrong with a mechanism switched off shows that it would find it.
"""

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
from google.rpc import error_details_pb2, status_pb2
from pomona.v1 import generation_pb2, model_pb2, model_pb2_grpc

from gateway.server import Gateway
from gateway.settings import load_settings
from tests.support.scripted import GENERATE, STREAM_GENERATE, events_in, fake_worker_command, write_script

MODEL = "m"
LIMIT_S = 30.0
UNBEGUN_S = 0.05  # how long a worker has a request before it begins it
BEGUN: dict[str, Any] = {"metadata": {"x-pomona-begun": "1"}}
SCRIPT: dict[str, Any] = {
    STREAM_GENERATE: [{"read": 1}, {"wait_s": UNBEGUN_S}, BEGUN, {"send": "0a00"}],
    GENERATE: [{"read": 1}, BEGUN, {"kill": "SIGABRT"}],  # what a worker dies of
}
CRASHES = {"back_off_first_s": 0.01, "back_off_limit_s": 0.02, "crash_budget": 1000}


@dataclass
class Rounds:
    """What became of the requests of some rounds.

    Attributes:
        ends: how many ended so, by reason; OK for those that were served.
        deaths: how many workers died of a request.
        times_s: until the requests of a round had ended.
    """

    ends: Counter[str] = field(default_factory=Counter[str])
    deaths: int = 0
    times_s: list[float] = field(default_factory=list[float])


async def lost(folder: Path, rounds: int, dice: random.Random, *, is_on: bool, clients: int = 8) -> Rounds:
    """Kill the worker in each round while it has requests that it has not begun."""
    result = Rounds()
    async with _served(folder, lost_requests=is_on, quarantine_deaths=0) as channel:
        for number in range(rounds):
            await _call(channel, STREAM_GENERATE, "so that the worker is there")
            pid = await _worker(channel)
            began_s = time.monotonic()
            calls = [
                asyncio.create_task(_call(channel, STREAM_GENERATE, f"{number} {client}")) for client in range(clients)
            ]
            await asyncio.sleep(dice.uniform(0.2, 0.7) * UNBEGUN_S)
            os.kill(pid, signal.SIGKILL)
            result.ends.update(await asyncio.gather(*calls))
            result.times_s.append(time.monotonic() - began_s)
    return result


async def poisoned(folder: Path, rounds: int, *, is_on: bool) -> Rounds:
    """Send the same request again and again that a worker dies of, and another one after each."""
    result = Rounds()
    async with _served(folder, lost_requests=True, quarantine_deaths=2 if is_on else 0) as channel:
        for _ in range(rounds):
            began_s = time.monotonic()
            result.ends[await _call(channel, GENERATE, "poison")] += 1
            result.ends[await _call(channel, STREAM_GENERATE, "harmless")] += 1
            result.times_s.append(time.monotonic() - began_s)
    result.deaths = len(events_in(folder, "started")) - 1
    return result


def lost_wrongs(result: Rounds) -> list[str]:
    """Return what is wrong where every request that had not begun is to be served."""
    wrong = {reason: number for reason, number in result.ends.items() if reason not in {"OK", "WORKER_DIED"}}
    return [f"{number} requests ended with {reason}" for reason, number in wrong.items()]


def poisoned_wrongs(result: Rounds) -> list[str]:
    """Return what is wrong where one request may take two workers with it, and no more."""
    return [f"{result.deaths} workers died of one request"] if result.deaths > 2 else []


@contextlib.asynccontextmanager
async def _served(folder: Path, **retries: Any) -> AsyncGenerator[grpc.aio.Channel]:
    folder.mkdir(exist_ok=True)  # noqa: ASYNC240
    models = [{"name": MODEL, "checkpoint": str(write_script(folder, methods=SCRIPT))}]
    told = {"listen": "127.0.0.1:0", "models": models, "hub_models": False, "logs": {"level": "error"}}
    gateway = Gateway(
        load_settings(None, {**told, "supervision": CRASHES, "retries": retries}), fake_worker_command().argv
    )
    try:
        async with grpc.aio.insecure_channel(await gateway.start()) as channel:
            yield channel
    finally:
        await gateway.stop()


async def _call(channel: grpc.aio.Channel, method: str, prompt: str) -> str:
    """Return how a request ended."""
    spec = generation_pb2.GenerationSpec(prompt=prompt)
    body = generation_pb2.GenerateRequest(model=MODEL, spec=spec).SerializeToString()
    call: Any = channel.unary_stream(method)(body, timeout=LIMIT_S)  # pyright: ignore[reportUnknownMemberType]
    try:
        async for _ in call:
            pass
    except grpc.aio.AioRpcError as error:
        return _reason(error)
    return "OK"


def _reason(error: grpc.aio.AioRpcError) -> str:
    packed: Any = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin", b"")
    info = error_details_pb2.ErrorInfo()
    for detail in status_pb2.Status.FromString(packed).details:
        if detail.Unpack(info):
            return info.reason
    return error.code().name


async def _worker(channel: grpc.aio.Channel) -> int:
    """Return the process that has the model."""
    models: Any = model_pb2_grpc.ModelServiceStub(channel)
    return (await models.GetModel(model_pb2.GetModelRequest(model=MODEL), timeout=LIMIT_S)).model.workers[0].pid
