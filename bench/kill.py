"""What is left and what callers are told when processes are killed, over many rounds at random instants.

Four kinds of round, each with real processes: the worker is killed in the midst of a stream; the worker is stopped
there, so that it is alive and does nothing; the gateway is killed at some instant of its worker's start and run; and
the last again with the real worker where the demo model is installed. Before them every signal hits a worker in every
state of its life, and a worker whose child escapes from its group must be seen to be left. A round whose outcome is
wrong ends the run with its seed, and so does one of the figures that are promises: no process is left 250 ms after its
gateway was killed.
"""

import argparse
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import report
from tests.support import fault_rounds
from tests.support.kill_rounds import QUICK, STALLS, gateway_process, kill_gateway, kill_worker, stop_worker
from tests.support.scripted import STREAM_GENERATE, write_script
from tests.support.served import demo_checkpoint

ORPHAN_LIMIT_S = 0.25
TICKING = {STREAM_GENERATE: [{"send": "0a00", "count": 100_000, "interval_s": 0.005}]}
STARTING: dict[str, Any] = {"reports": 5, "pause_s": 0.05, "grandchild": True}


def main() -> None:
    """Run the rounds, print their figures and write `bench/results/kill.json`."""
    arguments = parse(sys.argv[1:])
    print(report.heading("What is left after a kill"))
    print(f"seed {arguments.seed}, {arguments.rounds} rounds of each kind", flush=True)
    dice = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        catch_defect(Path(folder), dice)
        hit_in_every_state(arguments.state_rounds)
        results = {
            "worker_killed": worker_rounds(Path(folder), dice, arguments.rounds),
            "worker_stopped": stop_rounds(Path(folder), dice, arguments.stop_rounds or arguments.rounds),
            "gateway_killed": gateway_rounds(Path(folder), dice, arguments.rounds),
            "gateway_killed_real_worker": real_gateway_rounds(dice, arguments.real_rounds or arguments.rounds),
        }
    path = report.write("kill", {"seed": arguments.seed, "rounds": results})
    print(f"written to {path}")
    limit_s = arguments.orphan_limit
    late = [kind for kind, figures in results.items() if figures.get("left_s", {}).get("max", 0.0) > limit_s]
    if late:
        sys.exit(f"a process was left longer than {limit_s} s: {', '.join(late)}")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=1000, help="rounds of each kind")
    parser.add_argument("--state-rounds", type=int, default=1, help="rounds of each signal in each state")
    parser.add_argument("--stop-rounds", type=int, default=0, help="rounds with a stopped worker, if others")
    parser.add_argument("--real-rounds", type=int, default=0, help="rounds with the real worker, if others")
    parser.add_argument("--orphan-limit", type=float, default=ORPHAN_LIMIT_S, help="seconds; more on a busy machine")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    return parser.parse_args(arguments)


def catch_defect(folder: Path, dice: random.Random) -> None:
    """Kill a gateway whose worker has a child that leaves its group: that it is left must be found."""
    script = write_script(folder, grandchild="escaped")
    try:
        kill_gateway(script, dice, is_caught=True)
    except TimeoutError:
        print("a child that escapes is seen to be left", flush=True)
    else:
        sys.exit("a child that escapes was not seen to be left")


def hit_in_every_state(rounds: int) -> None:
    """Hit workers with every signal in every state, each with a gateway of its own."""
    for _ in range(rounds):
        for state in fault_rounds.STATES:
            for number in fault_rounds.SIGNALS:
                with tempfile.TemporaryDirectory() as folder:
                    fault_rounds.play(state, number, Path(folder))
    kinds = len(fault_rounds.STATES) * len(fault_rounds.SIGNALS)
    print(f"{kinds} kinds of hit, {rounds} of each: what follows is as it must be", flush=True)


def worker_rounds(folder: Path, dice: random.Random, rounds: int) -> dict[str, Any]:
    """Kill the worker of one gateway again and again; times are from the kill on."""
    script = write_script(folder, methods=TICKING)
    with gateway_process(script, **QUICK) as gateway, gateway.channel() as channel:
        outages = [kill_worker(gateway, channel, dice) for _ in range(rounds)]
    return shown(
        "worker killed", status_s=[one.status_s for one in outages], serving_s=[one.serving_s for one in outages]
    )


def stop_rounds(folder: Path, dice: random.Random, rounds: int) -> dict[str, Any]:
    """Stop the worker of one gateway again and again; it is given up after ten missed reports of 0.1 s."""
    script = write_script(folder, methods=TICKING)
    with gateway_process(script, **QUICK, **STALLS) as gateway, gateway.channel() as channel:
        outages = [stop_worker(gateway, channel, dice) for _ in range(rounds)]
    return shown(
        "worker stopped", status_s=[one.status_s for one in outages], serving_s=[one.serving_s for one in outages]
    )


def gateway_rounds(folder: Path, dice: random.Random, rounds: int) -> dict[str, Any]:
    """Kill a gateway with a scripted worker that has a child of its own."""
    script = write_script(folder, **STARTING)
    return shown("gateway killed", left_s=[kill_gateway(script, dice) for _ in range(rounds)])


def real_gateway_rounds(dice: random.Random, rounds: int) -> dict[str, Any]:
    """Kill a gateway with a real worker, from the start of its process to well after its load."""
    model = demo_checkpoint()
    left_s = [kill_gateway(model, dice, is_fake=False, span_s=1.5) for _ in range(rounds)]
    return shown("gateway killed, real worker", left_s=left_s)


def shown(title: str, **samples: list[float]) -> dict[str, Any]:
    """Print and return the spread of each figure."""
    figures = {name: report.summary(values) for name, values in samples.items()}
    for name, figure in figures.items():
        spread = ", ".join(f"{key} {1000 * float(figure[key]):.1f}" for key in ("min", "median", "max"))
        print(f"{title}: {name.removesuffix('_s')} after {spread} ms ({figure['count']} rounds)", flush=True)
    return figures


if __name__ == "__main__":
    main()
