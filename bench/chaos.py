"""Requests over four models whose workers are killed, stopped, aborted and unloaded: no answer is another model's.

A real gateway, workers that follow a script and say in each event whose it is. Every answer is checked as it comes:
that it is of the model and the request that was asked for, that its events are numbered without a gap, that it is
complete or ends with a status that the contract lists. Short runs with defects must be caught by the same checks: a
gateway that sends calls astray, and workers whose answers are wrong in each way that is looked for.
"""

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
from pomona.v1 import generation_pb2 as g
from pomona.v1 import model_pb2, model_pb2_grpc

from bench import report
from bench.faults import outcome
from bench.faults.history import History
from bench.load.verdicts import Verdict
from tests.support.kill_rounds import GatewayProcess, gateway_process, processes_marked
from tests.support.scripted import GENERATE, STREAM_GENERATE, write_script

LIMIT_S = 20.0
MODELS = ("north", "east", "south", "west")
CLIENTS = 24
NUM_DELTAS = 6
STREAM_SHARE = 0.2
MIN_RATE = 100.0  # requests a second, without which a run shows nothing
DEFECTIVE_REQUESTS = 2000
GOOD: Mapping[str, Any] = {}
WORKER_DEFECTS = ("model", "gap", "twice", "silent")
SUPERVISION: Mapping[str, Any] = {
    "back_off_first_s": 0.05,
    "back_off_limit_s": 0.1,
    "crash_budget": 1000,
    "heartbeat_s": 0.1,
    "suspect_after": 3,
    "lost_after": 10,
    "dump_s": 0.1,
    "term_s": 0.5,
}
DEATHS = (signal.SIGKILL, signal.SIGKILL, signal.SIGABRT, signal.SIGBUS, signal.SIGTERM, signal.SIGSTOP)
OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.default_authority", "localhost"), ("grpc.enable_retries", 0))


def main() -> None:
    """Run the chaos and print its verdicts."""
    arguments = parse(sys.argv[1:])
    print(report.heading("Chaos"))
    print(f"seed {arguments.seed}, {arguments.requests} requests, a fault every {arguments.pause} s", flush=True)
    runs: dict[str, list[Verdict]] = {}
    few = Plan(DEFECTIVE_REQUESTS, arguments.seed, 5.0)
    defective = ["calls go astray", *(f"answers with {name!r} wrong" for name in WORKER_DEFECTS)]
    runs[defective[0]] = run(few, ("stray:100",))[0]
    for title, name in zip(defective[1:], WORKER_DEFECTS, strict=True):
        runs[title] = run(few, (), {"defect": name, "every": 20})[0]
    runs["chaos"], figures = run(Plan(arguments.requests, arguments.seed, arguments.pause))
    for title, found in runs.items():
        outcome.show(title, found)
    print(figures)
    outcome.finish("chaos", arguments.seed, runs, defective, figures=figures)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two faults, about")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    return parser.parse_args(arguments)


@dataclass(frozen=True)
class Plan:
    """How many requests, from which seed, and how many seconds lie between two faults."""

    requests: int
    seed: int
    pause_s: float


def run(
    plan: Plan, defects: Sequence[str] = (), wrong: Mapping[str, Any] = GOOD
) -> tuple[list[Verdict], dict[str, Any]]:
    """Send the requests while faults happen; return the verdicts and the figures."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = {model: Path(folder) / model for model in MODELS}
        for path in checkpoints.values():
            path.mkdir()
        methods = {
            GENERATE: [{"read": 1}, {"tell": 0, **wrong}],
            STREAM_GENERATE: [{"read": 1}, {"tell": NUM_DELTAS, **wrong}],
        }
        scripts = {model: write_script(path, events="", methods=methods) for model, path in checkpoints.items()}
        with gateway_process(scripts, defects=defects, **SUPERVISION) as gateway:
            chaos = Chaos(gateway, plan, random.Random(plan.seed))
            began = time.monotonic()
            asyncio.run(chaos.play())
            took_s = time.monotonic() - began
            alive = gateway.process.poll() is None
    figures = {
        "seconds": round(took_s, 1),
        "requests_per_s": round(plan.requests / took_s, 1),
        "outcomes": dict(chaos.outcomes),
        "faults": dict(chaos.faults),
    }
    return verdicts(chaos, plan, took_s, alive), figures


def verdicts(chaos: "Chaos", plan: Plan, took_s: float, alive: bool) -> list[Verdict]:
    """Return what is to be thought of a run."""
    strange = sum(count for wrong, count in chaos.wrong.items() if "another" in wrong)
    worst = ", ".join(f"{count} times: {wrong}" for wrong, count in chaos.wrong.most_common(5))
    served = chaos.outcomes["OK"] / max(1, plan.requests)
    rate = plan.requests / took_s
    return [
        Verdict("no answer is another model's or request's", strange == 0, f"{strange} of {plan.requests}"),
        Verdict("every answer keeps the contract", not chaos.wrong, worst or f"{chaos.num_events} events"),
        Verdict("every request ends", chaos.outcomes.total() == plan.requests, f"{chaos.outcomes.total()} did"),
        Verdict("most are served in spite of it", served > 0.5, f"{100 * served:.1f} %, {dict(chaos.outcomes)}"),
        Verdict(
            f"at least {MIN_RATE:.0f} a second came", rate > MIN_RATE, f"{rate:.0f}, {chaos.faults.total()} faults"
        ),
        Verdict("the gateway lives", alive, ""),
    ]


@dataclass
class Chaos:
    """Clients that ask, and somebody who breaks things under them."""

    gateway: GatewayProcess
    plan: Plan
    dice: random.Random
    outcomes: Counter[str] = field(default_factory=Counter[str])
    wrong: Counter[str] = field(default_factory=Counter[str])
    faults: Counter[str] = field(default_factory=Counter[str])
    num_events: int = 0
    _begun: int = 0

    async def play(self) -> None:
        """Send all requests; faults end with the last of them."""
        async with grpc.aio.insecure_channel(self.gateway.address, options=OPTIONS) as channel:
            breaking = asyncio.create_task(self._break(channel))
            async with asyncio.TaskGroup() as group:
                for _ in range(CLIENTS):
                    group.create_task(self._client(channel))
            breaking.cancel()
            await asyncio.wait([breaking])

    async def _client(self, channel: grpc.aio.Channel) -> None:
        unary, stream = channel.unary_unary(GENERATE), channel.unary_stream(STREAM_GENERATE)
        while self._begun < self.plan.requests:
            self._begun += 1
            model = self.dice.choice(MODELS)
            history = History(model, f"r{self._begun}")
            try:
                async with asyncio.timeout(2 * LIMIT_S):
                    await self._ask(history, unary, stream)
            except grpc.aio.AioRpcError as error:
                history.failed(error.code().name, dict(error.trailing_metadata() or ()))
            except TimeoutError:
                history.outcome = "no end"
                history.wrong.append("it has no end")
            else:
                history.ended()
            self.outcomes[history.outcome] += 1
            self.wrong.update(history.wrong)
            self.num_events += history.num_events

    async def _ask(self, history: History, unary: Any, stream: Any) -> None:
        model, request_id = history.model, history.request_id
        spec = g.GenerationSpec(prompt=request_id)  # no two alike: what two workers died with would be refused
        if self.dice.random() >= STREAM_SHARE:
            asked = g.GenerateRequest(model=model, request_id=request_id, spec=spec).SerializeToString()
            history.answered(await unary(asked, timeout=LIMIT_S))
            return
        asked = g.StreamGenerateRequest(model=model, request_id=request_id, spec=spec).SerializeToString()
        async for body in stream(asked, timeout=LIMIT_S):
            history.take(body)

    async def _break(self, channel: grpc.aio.Channel) -> None:
        models: Any = model_pb2_grpc.ModelServiceStub(channel)
        while True:
            await asyncio.sleep(self.dice.uniform(0.2, 1.8) * self.plan.pause_s)
            if self.dice.random() < 0.2:
                model = self.dice.choice(MODELS)
                self.faults["unload"] += 1
                await models.UnloadModel(model_pb2.UnloadModelRequest(model=model), timeout=3 * LIMIT_S)
            else:
                await asyncio.to_thread(self._kill)

    def _kill(self) -> None:
        workers = sorted(processes_marked(self.gateway.mark) - {self.gateway.process.pid})
        if workers:
            number = self.dice.choice(DEATHS)
            self.faults[number.name] += 1
            try:
                os.kill(self.dice.choice(workers), number)
            except ProcessLookupError:
                self.faults["too late"] += 1


if __name__ == "__main__":
    main()
