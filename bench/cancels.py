"""Streams that their clients cancel, at any instant: the gateway and the worker keep nothing of them.

A real gateway with a scripted worker. Clients end their streams before they have begun, within them, by a deadline, or
by closing the connection under them. At the end no request is in flight anywhere, and the gateway's memory has grown
by no more than it may. A short run with a gateway that keeps every request must be caught by the same checks.
"""

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from pomona.v1 import generation_pb2 as g
from pomona.v1 import model_pb2, model_pb2_grpc, server_pb2, server_pb2_grpc

from bench import report
from bench.faults import growth, outcome
from bench.faults.growth import Growth, Samples
from bench.load.verdicts import MIB, Verdict
from tests.support.kill_rounds import MODEL, QUICK, GatewayProcess, gateway_process
from tests.support.scripted import STREAM_GENERATE, events_in, write_script

LIMIT_S = 30.0
SETTLE_S = 10.0
ALLOWED = Growth(total_bytes=10 * MIB, late_bytes=2 * MIB)
KEPT_BYTES = 16 * 1024
DEFECTIVE_STREAMS = 3000
CLIENTS = 32
CHANNEL_STREAMS = 200  # of one connection, before it is closed
TICKING = {STREAM_GENERATE: [{"tell": 500, "interval_s": 0.002}]}
WAYS = ("at once", "before the first message", "within the stream", "by a deadline", "by closing the connection")
REQUEST = g.StreamGenerateRequest(model=MODEL, spec=g.GenerationSpec(prompt="x" * 500)).SerializeToString()
OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.default_authority", "localhost"))


def main() -> None:
    """Cancel streams and print the verdicts."""
    arguments = parse(sys.argv[1:])
    print(report.heading("Cancelled streams"))
    began = time.monotonic()
    runs = {
        "a gateway that keeps them": run(DEFECTIVE_STREAMS, arguments.seed, (f"keep:{KEPT_BYTES}",)),
        "cancels": run(arguments.streams, arguments.seed),
    }
    for title, found in runs.items():
        outcome.show(title, found)
    seconds = round(time.monotonic() - began, 1)
    defective = ["a gateway that keeps them"]
    outcome.finish("cancels", arguments.seed, runs, defective, streams=arguments.streams, seconds=seconds)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--streams", type=int, default=100_000, help="that are cancelled")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    return parser.parse_args(arguments)


def run(streams: int, seed: int, defects: Sequence[str] = ()) -> list[Verdict]:
    """Cancel so many streams of a new gateway, and hold what is left of them against what is allowed."""
    with tempfile.TemporaryDirectory() as folder:
        script = write_script(Path(folder), noted=["shutdown"], methods=TICKING)
        with gateway_process(script, defects=defects, **QUICK) as gateway, gateway.channel() as channel:
            model_pb2_grpc.ModelServiceStub(channel).LoadModel(model_pb2.LoadModelRequest(model=MODEL), timeout=LIMIT_S)
            crowd = Crowd(gateway, streams, Samples(gateway.process.pid, streams), random.Random(seed))
            asyncio.run(crowd.play())
            left = left_over(channel, Path(folder))
            crowd.samples.sizes.append(growth.size_of(gateway.process.pid, streams))
    sizes = growth.judge(crowd.samples.sizes, ALLOWED)
    ways = ", ".join(f"{crowd.ended[way]} {way}" for way in WAYS)
    return [
        *sizes,
        Verdict("nothing of them is in flight", not any(left), f"{left[0]} in the gateway, {left[1]} in the worker"),
        Verdict("every one was cancelled", crowd.ended.total() == streams, ways),
        Verdict("the worker is the same", crowd.restarts == 0, f"{crowd.restarts} restarts"),
    ]


def left_over(channel: grpc.Channel, folder: Path) -> tuple[int, int]:
    """Return how many requests are in flight in gateway and worker, once they had time to end; unloads the model."""
    admin = server_pb2_grpc.AdminServiceStub(channel)
    until = time.monotonic() + SETTLE_S
    while True:
        listed = len(admin.ListRequests(server_pb2.ListRequestsRequest(), timeout=LIMIT_S).requests)
        if not listed or time.monotonic() > until:
            break
        time.sleep(0.1)
    models = model_pb2_grpc.ModelServiceStub(channel)
    models.UnloadModel(model_pb2.UnloadModelRequest(model=MODEL), timeout=LIMIT_S)
    return listed, events_in(folder, "shutdown")[-1]["running"]


@dataclass
class Crowd:
    """Clients that open streams and cancel them."""

    gateway: GatewayProcess
    streams: int
    samples: Samples
    dice: random.Random
    ended: Counter[str] = field(default_factory=Counter[str])
    restarts: int = 0
    _begun: int = 0

    async def play(self) -> None:
        """Cancel all streams."""
        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(self._client())
        async with grpc.aio.insecure_channel(self.gateway.address, options=OPTIONS) as channel:
            stub: Any = model_pb2_grpc.ModelServiceStub(channel)
            model = (await stub.GetModel(model_pb2.GetModelRequest(model=MODEL), timeout=LIMIT_S)).model
            self.restarts = sum(worker.restart_count for worker in model.workers)

    async def _client(self) -> None:
        while self._begun < self.streams:
            async with grpc.aio.insecure_channel(self.gateway.address, options=OPTIONS) as channel:
                for _ in range(CHANNEL_STREAMS):
                    if self._begun >= self.streams:
                        return
                    self._begun += 1
                    way = self.dice.choice(WAYS)
                    async with asyncio.timeout(LIMIT_S):
                        await self._cancel(channel, way)
                    self.ended[way] += 1
                    self.samples.note(self.ended.total())
                    if way == WAYS[-1]:
                        break

    async def _cancel(self, channel: grpc.aio.Channel, way: str) -> None:
        """Open a stream and end it in the given way; what it was told meanwhile does not matter."""
        limit_s = self.dice.uniform(0.001, 0.02) if way == "by a deadline" else LIMIT_S
        call: Any = channel.unary_stream(STREAM_GENERATE)(REQUEST, timeout=limit_s)
        try:
            await self._take_some(call, way)
            if way == WAYS[-1]:
                await channel.close(None)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise
        finally:
            call.cancel()
            with contextlib.suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
                await call.code()

    async def _take_some(self, call: Any, way: str) -> None:
        match way:
            case "at once":
                return
            case "before the first message":
                await asyncio.sleep(self.dice.uniform(0.0, 0.003))
            case "by a deadline":
                while await call.read():
                    pass
            case _:
                for _ in range(self.dice.randrange(1, 6)):
                    await call.read()


if __name__ == "__main__":
    main()
