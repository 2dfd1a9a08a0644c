"""Clients as they are: in a hurry, impatient, slow, or gone. A process of its own plays them at random, by a seed.

Requests arrive whether or not others are answered, so more of them can be asked for than a server can answer. Every
stream is followed to its status and held to the contract.
"""

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import grpc
import grpc.aio
from pomona.v1 import generation_pb2 as pb
from pomona.v1 import model_pb2, model_pb2_grpc

from bench import report
from bench.load.contract import Contract
from bench.load.prompts import TEXT
from bench.load.targets import STREAM_GENERATE

Temper = Literal["plain", "cancels", "deadline", "slow", "halting"]
TEMPERS: dict[Temper, float] = {"plain": 0.55, "cancels": 0.15, "deadline": 0.15, "slow": 0.1, "halting": 0.05}
# Least and most words of a prompt, about a token each, and how often.
PROMPT_WORDS = {(4, 64): 0.7, (64, 512): 0.25, (512, 2000): 0.05}
SHARED_PREFIXES = 4
PREFIX_WORDS = 96
OUTPUT_TOKENS = (4, 160)
SAMPLE_S = 1.0
LAG_S = 0.05
LEAST_PER_S = 0.1
END_LIMIT_S = 60.0
PROCESS_GRACE_S = 120.0
# A slow reader's channel takes little ahead of it, so that the server feels it.
NARROW = (("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0), ("grpc.use_local_subchannel_pool", 1))
NEVER_ENDED = "NEVER_ENDED"


@dataclass(frozen=True, slots=True)
class Crowd:
    """What is played.

    Attributes:
        address: of the gateway.
        model: its name.
        seed: of everything that is random.
        rows: requests that the server runs side by side.
        measured_s: how long its capacity is measured: so many patient clients as it has rows, each with its next
            request at once.
        seconds: how long requests arrive after that.
        load: times the capacity.
        per_s: requests a second, where no capacity is to be measured; 0: `load` times the capacity.
        end_limit_s: how long the last requests may go on.
    """

    address: str
    model: str
    seed: int
    rows: int
    measured_s: float
    seconds: float
    load: float = 2.0
    per_s: float = 0.0
    end_limit_s: float = END_LIMIT_S


@dataclass(slots=True)
class Ended:
    """What became of one request; times in seconds from the start.

    Attributes:
        temper: of its client.
        sent_s: when it was asked for.
        ended_s: when it ended.
        status: its gRPC status by name; NEVER_ENDED: none came.
        is_started: it was admitted.
        num_tokens: that came.
        longest_wait_s: the longest wait for an event after it was admitted, without the client's own pauses.
        faults: against the contract.
    """

    temper: Temper
    sent_s: float
    ended_s: float = 0.0
    status: str = NEVER_ENDED
    is_started: bool = False
    num_tokens: int = 0
    longest_wait_s: float = 0.0
    faults: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class Played:
    """What became of all.

    Attributes:
        capacity_per_s: requests that patient clients had answered in a second.
        requests: every one after that.
        memory: seconds, the worker's footprint, and its caches, in bytes.
        lag_s: how late this process itself was at most.
    """

    capacity_per_s: float = 0.0
    requests: list[Ended] = field(default_factory=list[Ended])
    memory: list[tuple[float, int, int]] = field(default_factory=list[tuple[float, int, int]])
    lag_s: float = 0.0


def run(crowd: Crowd) -> Played:
    """Play in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "bench.load.unruly"],
        cwd=report.ROOT,
        env={**os.environ, "PYTHONPATH": str(report.ROOT)},
        input=json.dumps(asdict(crowd)),
        stdout=subprocess.PIPE,
        text=True,
        timeout=crowd.measured_s + crowd.seconds + crowd.end_limit_s + PROCESS_GRACE_S,
        check=True,
    )
    read = json.loads(done.stdout)
    requests = [Ended(**request) for request in read["requests"]]
    memory = [(moment, footprint, caches) for moment, footprint, caches in read["memory"]]
    return Played(read["capacity_per_s"], requests, memory, read["lag_s"])


async def play(crowd: Crowd) -> Played:
    """Measure the capacity, let the crowd come, and wait until every request has ended."""
    played = Played()
    async with _channels(crowd.address) as (channel, narrow):
        maker = _Maker(crowd, channel, narrow)
        watchers = [
            asyncio.create_task(_sample(played, crowd, channel, maker.clock)),
            asyncio.create_task(_lag(played)),
        ]
        if not crowd.per_s:
            played.capacity_per_s = await _capacity(maker, crowd)
        tasks = await _arrive(maker, crowd, played)
        if tasks:
            await asyncio.wait(tasks, timeout=crowd.end_limit_s)
        for task in (*watchers, *tasks):
            task.cancel()
        await asyncio.gather(*watchers, *tasks, return_exceptions=True)
    return played


@asynccontextmanager
async def _channels(address: str) -> AsyncGenerator[tuple[grpc.aio.Channel, grpc.aio.Channel]]:
    async with grpc.aio.insecure_channel(address) as channel, grpc.aio.insecure_channel(address, NARROW) as narrow:
        yield channel, narrow


async def _capacity(maker: "_Maker", crowd: Crowd) -> float:
    """Return the requests a second that patient clients get answered once all are at it, after a third of the time."""
    answered: list[float] = []

    async def client() -> None:
        while True:
            request = Ended("plain", maker.clock())
            await maker.follow(request)
            if request.status == "OK":
                answered.append(maker.clock())

    clients = [asyncio.create_task(client()) for _ in range(crowd.rows)]
    done, _ = await asyncio.wait(clients, timeout=crowd.measured_s)
    for each in clients:
        each.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    for failed in done:
        failed.result()
    from_s = crowd.measured_s / 3
    return sum(moment >= from_s for moment in answered) / (crowd.measured_s - from_s)


async def _arrive(maker: "_Maker", crowd: Crowd, played: Played) -> list[asyncio.Task[None]]:
    """Send requests as a Poisson process does; return those that are still under way at the end."""
    end_s = maker.clock() + crowd.seconds
    per_s = crowd.per_s or crowd.load * max(played.capacity_per_s, LEAST_PER_S)
    tasks: set[asyncio.Task[None]] = set()
    due_s = maker.clock()
    while (due_s := due_s + maker.dice.expovariate(per_s)) < end_s:
        await asyncio.sleep(due_s - maker.clock())
        temper = maker.dice.choices(list(TEMPERS), list(TEMPERS.values()))[0]
        request = Ended(temper, maker.clock())
        played.requests.append(request)
        task = asyncio.create_task(maker.follow(request))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    return list(tasks)


class _Maker:
    """Makes requests and follows them."""

    def __init__(self, crowd: Crowd, channel: grpc.aio.Channel, narrow: grpc.aio.Channel) -> None:
        self.dice = random.Random(crowd.seed)
        self._model = crowd.model
        self._words = TEXT.split()
        self._prefixes = [" ".join(self.dice.choices(self._words, k=PREFIX_WORDS)) for _ in range(SHARED_PREFIXES)]
        self._send = {
            is_narrow: each.unary_stream(
                STREAM_GENERATE,
                request_serializer=pb.StreamGenerateRequest.SerializeToString,
                response_deserializer=pb.StreamGenerateResponse.FromString,
            )
            for is_narrow, each in ((False, channel), (True, narrow))
        }
        self._start = time.perf_counter()

    def clock(self) -> float:
        """Return the seconds since the start."""
        return time.perf_counter() - self._start

    async def follow(self, request: Ended) -> None:
        """Ask, behave as the client's temper has it, and note what came."""
        dice = random.Random(self.dice.random())
        contract = Contract()
        deadline_s = dice.uniform(0.05, 5.0) if request.temper == "deadline" else None
        is_narrow = request.temper in {"slow", "halting"}
        call: Any = self._send[is_narrow](self._request(dice), timeout=deadline_s)
        quits_at_s = dice.uniform(0.0, 3.0) if request.temper == "cancels" else None
        canceller = asyncio.get_running_loop().call_later(quits_at_s, call.cancel) if quits_at_s is not None else None
        try:
            request.status = await self._read(call, request, contract, _pauses(request.temper, dice))
        finally:
            if canceller is not None:
                canceller.cancel()
            call.cancel()
            request.ended_s = self.clock()
            request.is_started, request.num_tokens = contract.is_started, contract.num_tokens
            request.faults = contract.faults[:3]

    async def _read(self, call: Any, request: Ended, contract: Contract, pause: Callable[[], float]) -> str:
        end: Any = grpc.aio.EOF  # pyright: ignore[reportAttributeAccessIssue]
        try:
            while True:
                asked_s = self.clock()
                event = await call.read()
                if contract.is_started:
                    request.longest_wait_s = max(request.longest_wait_s, self.clock() - asked_s)
                if event is end:
                    break
                contract.add(event)
                if pause_s := pause():
                    await asyncio.sleep(pause_s)
        except grpc.aio.AioRpcError:
            pass  # its status follows
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # not the client but this process gives up
        status = (await call.code()).name
        contract.end(is_ok=status == "OK")
        return status

    def _request(self, dice: random.Random) -> pb.StreamGenerateRequest:
        least, most = dice.choices(list(PROMPT_WORDS), list(PROMPT_WORDS.values()))[0]
        words = dice.choices(self._words, k=dice.randint(least, most))
        prefix = dice.choice(self._prefixes) if dice.random() < 0.3 else ""
        sampling = pb.SamplingParams(temperature=0.0)
        if dice.random() < 0.5:
            sampling = pb.SamplingParams(temperature=0.8, top_p=0.95, seed=dice.getrandbits(32))
        stopping = pb.StoppingParams(max_tokens=dice.randint(*OUTPUT_TOKENS), ignore_eos=dice.random() < 0.5)
        spec = pb.GenerationSpec(prompt=f"{prefix} {' '.join(words)}".strip(), sampling=sampling, stopping=stopping)
        spec.output.token_ids = dice.random() < 0.3
        options = pb.StreamOptions(prefill_progress=True, coalesce_tokens=dice.choice((0, 0, 0, 4)))
        return pb.StreamGenerateRequest(
            model=self._model, priority=dice.choice((0, 0, 0, 1, -1)), spec=spec, stream_options=options
        )


def _pauses(temper: Temper, dice: random.Random) -> Callable[[], float]:
    """Return what says how long a client does something else after each event."""
    if temper == "slow":
        return lambda: dice.uniform(0.0, 0.3)
    if temper == "halting":
        return lambda: 4.0 if dice.random() < 0.03 else 0.0
    return lambda: 0.0


async def _sample(played: Played, crowd: Crowd, channel: grpc.aio.Channel, clock: Callable[[], float]) -> None:
    """Ask for the worker's memory again and again."""
    stub: Any = model_pb2_grpc.ModelServiceStub(channel)
    while True:
        answer = await stub.GetModel(model_pb2.GetModelRequest(model=crowd.model))
        memory = answer.model.memory
        played.memory.append((clock(), memory.footprint_bytes, memory.cache_bytes))
        await asyncio.sleep(SAMPLE_S)


async def _lag(played: Played) -> None:
    """Note how late this process is."""
    while True:
        before = time.perf_counter()
        await asyncio.sleep(LAG_S)
        played.lag_s = max(played.lag_s, time.perf_counter() - before - LAG_S)


async def _main(crowd: Crowd) -> None:
    print(json.dumps(asdict(await play(crowd))))


def main() -> None:
    """Read a crowd from standard input, play it, and print what became of it."""
    with asyncio.Runner(loop_factory=report.loop_factory()) as runner:
        runner.run(_main(Crowd(**json.loads(sys.stdin.read()))))


if __name__ == "__main__":
    main()
