"""A model is loaded, asked and unloaded again and again: the gateway does not grow, and nothing of a worker is left.

The gateway is a real one, its workers are real processes that follow a script. Two models take turns side by side, so
that a load meets another's unload. A short run with a gateway that leaks must be caught by the same checks.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from pomona.v1 import generation_pb2 as g
from pomona.v1 import model_pb2, model_pb2_grpc

from bench import report
from bench.faults import growth, outcome
from bench.faults.growth import Growth, Samples
from bench.load.verdicts import MIB, Verdict
from tests.support.kill_rounds import QUICK, GatewayProcess, gateway_process
from tests.support.scripted import GENERATE, write_script
from tests.support.waiting import wait_until

LIMIT_S = 30.0
ALLOWED = Growth(total_bytes=20 * MIB, late_bytes=5 * MIB)
LEAK_BYTES = 4 * MIB
DEFECTIVE_CYCLES = 12
MODELS = ("a", "b")
SCRIPT = {GENERATE: [{"read": 1}, {"tell": 0}]}


def main() -> None:
    """Run the cycles and print their verdicts."""
    arguments = parse(sys.argv[1:])
    print(report.heading("Load and unload, again and again"))
    dice = random.Random(arguments.seed)
    began = time.monotonic()
    runs = {
        "a gateway that leaks": run(DEFECTIVE_CYCLES, dice, (f"leak:{LEAK_BYTES}",)),
        "cycles": run(arguments.cycles, dice),
    }
    for title, found in runs.items():
        outcome.show(title, found)
    outcome.finish(
        "cycles",
        arguments.seed,
        runs,
        ["a gateway that leaks"],
        cycles=arguments.cycles,
        seconds=round(time.monotonic() - began, 1),
    )


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cycles", type=int, default=1000, help="loads in all")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    return parser.parse_args(arguments)


def run(cycles: int, dice: random.Random, defects: Sequence[str] = ()) -> list[Verdict]:
    """Load and unload so often, and hold what the gateway is afterwards against what is allowed."""
    with tempfile.TemporaryDirectory() as folder:
        scripts = {model: Path(folder) / model for model in MODELS}
        for path in scripts.values():
            path.mkdir()
        checkpoints = {model: write_script(path, events="", methods=SCRIPT) for model, path in scripts.items()}
        with gateway_process(checkpoints, defects=defects, **QUICK) as gateway:
            samples = Samples(gateway.process.pid, cycles)
            freed = cycle_all(gateway, cycles, dice, samples)
            wait_until(lambda: not gateway.workers(), LIMIT_S)
            samples.sizes.append(growth.size_of(gateway.process.pid, cycles))
    sockets = Verdict("every unload tells what it freed", min(freed) > 0, f"{min(freed) / MIB:.1f} MiB at least")
    return [*growth.judge(samples.sizes, ALLOWED), sockets]


def cycle_all(gateway: GatewayProcess, cycles: int, dice: random.Random, samples: Samples) -> list[int]:
    """Have each model loaded and unloaded its share of times; return what each unload freed, in bytes."""
    done: list[int] = []
    seeds = {model: dice.random() for model in MODELS}

    def of_one(model: str) -> None:
        own = random.Random(seeds[model])
        with gateway.channel() as channel:
            for _ in range(cycles // len(MODELS)):
                done.append(cycle(channel, model, own))
                samples.note(len(done))

    with ThreadPoolExecutor(len(MODELS)) as pool:
        list(pool.map(of_one, MODELS))
    return done


def cycle(channel: grpc.Channel, model: str, dice: random.Random) -> int:
    """Load a model, by hand or by asking it, ask it, unload it, and return how many bytes that freed."""
    models = model_pb2_grpc.ModelServiceStub(channel)
    if dice.random() < 0.5:
        models.LoadModel(model_pb2.LoadModelRequest(model=model), timeout=LIMIT_S)
    ask = channel.unary_unary(GENERATE, response_deserializer=g.GenerateResponse.FromString)
    answer: g.GenerateResponse = ask(g.GenerateRequest(model=model).SerializeToString(), timeout=LIMIT_S)
    if answer.resolved_model.model != model:
        raise AssertionError(f"{answer.resolved_model.model} answered for {model}")
    return models.UnloadModel(model_pb2.UnloadModelRequest(model=model), timeout=LIMIT_S).freed_bytes


if __name__ == "__main__":
    main()
