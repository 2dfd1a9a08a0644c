"""Requests against unloads, idle times and the server's end, loads against loads: none hangs, none is lost.

Each kind has so many rounds, within each of which all begins within 6 ms. Workers are servers in this process, so that
many thousand rounds take minutes; requests come over a real channel, through the real relay and the real keeper of
workers. A short run of each kind with a defect must be caught by the same checks.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import report
from bench.faults import outcome
from bench.faults.race_defects import Deaf, Eager, Forgetful
from bench.faults.racecourse import (
    IDLE_TTL_S,
    LIMIT_S,
    Course,
    Defect,
    course,
    drain_and_request,
    idle_and_request,
    load_and_load,
    unload_and_request,
)
from bench.load.verdicts import Verdict
from tests.gateway.farm import MODELS

DEFECTIVE_ROUNDS = 60
COURSE_ROUNDS = 1000  # of one server
ENOUGH = 100  # wrongs, after which a run is given up
Round = Callable[[Course, str], Awaitable[None]]


@dataclass(frozen=True)
class Kind:
    """One kind of race.

    Attributes:
        play: one round.
        is_last: a server takes no second round.
        defect: what the race must find.
        idle_ttl_s: after how long a model goes that nobody uses; None: it stays.
    """

    play: Round
    is_last: bool
    defect: Defect
    idle_ttl_s: float | None = None


KINDS: Mapping[str, Kind] = {
    "unload and request": Kind(unload_and_request, False, Forgetful),
    "idle and request": Kind(idle_and_request, False, Forgetful, IDLE_TTL_S),
    "load and load": Kind(load_and_load, False, Eager),
    "drain and request": Kind(drain_and_request, True, Deaf),
}


def main() -> None:
    """Run the races and print their verdicts."""
    arguments = parse(sys.argv[1:])
    print(report.heading("Races"))
    print(f"seed {arguments.seed}, {arguments.rounds} rounds of each kind", flush=True)
    began = time.monotonic()
    runs: dict[str, list[Verdict]] = {}
    defective: list[str] = []
    for title, kind in KINDS.items():
        with_defect = f"{title}, {kind.defect.__name__.lower()}"
        defective.append(with_defect)
        runs[with_defect] = run(kind, DEFECTIVE_ROUNDS, arguments.seed, kind.defect)
        outcome.show(with_defect, runs[with_defect])
        runs[title] = run(kind, arguments.rounds, arguments.seed)
        outcome.show(title, runs[title])
    seconds = round(time.monotonic() - began, 1)
    outcome.finish("races", arguments.seed, runs, defective, rounds=arguments.rounds, seconds=seconds)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=10_000, help="of each kind")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    return parser.parse_args(arguments)


def run(kind: Kind, rounds: int, seed: int, defect: Defect | None = None) -> list[Verdict]:
    """Run so many rounds of one kind."""
    began = time.monotonic()
    wrongs = asyncio.run(_play(kind, rounds, random.Random(seed), defect))
    counted = ", ".join(f"{count} {wrong}" for wrong, count in wrongs.most_common(5))
    hangs = sum(count for wrong, count in wrongs.items() if "no end" in wrong or "DEADLINE" in wrong)
    took_s = time.monotonic() - began
    return [
        Verdict(
            f"everything ends within {LIMIT_S:g} s", hangs == 0, f"{hangs} hangs in {rounds} rounds, {took_s:.0f} s"
        ),
        Verdict("nothing is lost, and nothing is done twice", not wrongs, counted or "nothing was"),
    ]


async def _play(kind: Kind, rounds: int, dice: random.Random, defect: Defect | None) -> Counter[str]:
    """Play the rounds, two models side by side where a server takes more than one, until too much was wrong."""
    wrongs: Counter[str] = Counter()
    left, enough = rounds, 1 if defect is not None else ENOUGH
    while left > 0 and wrongs.total() < enough:
        with tempfile.TemporaryDirectory(prefix="r-", dir="/tmp") as folder:
            async with course(Path(folder), dice, defect, kind.idle_ttl_s) as one:
                models = MODELS[:1] if kind.is_last else MODELS
                for _ in range(1 if kind.is_last else min(COURSE_ROUNDS, left)):
                    await asyncio.gather(*(kind.play(one, model) for model in models))
                    left -= len(models)
                    if len(one.wrongs) >= enough:
                        break
                wrongs.update(one.wrongs)
    return wrongs


if __name__ == "__main__":
    main()
