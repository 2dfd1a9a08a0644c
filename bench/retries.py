"""What callers are told when workers die under their requests, with the second attempt and the quarantine on and off.

Real worker processes that follow a script, under a gateway in this process. In the rounds of `lost` a worker is killed
while it has eight requests that it has not begun; in those of `poisoned` each worker dies of the same request. The same
judge looks at all rounds: with a mechanism on it must find nothing, with it off it must find what the mechanism is for,
or the measurement is worth nothing and fails.
"""

import argparse
import asyncio
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import report
from tests.support.retry_rounds import Rounds, lost, lost_wrongs, poisoned, poisoned_wrongs


def main() -> None:
    """Run the rounds, print what came of them and write `bench/results/retries.json`."""
    arguments = parse(sys.argv[1:])
    print(report.heading("Requests whose workers die"))
    with tempfile.TemporaryDirectory() as folder:
        results, problems = asyncio.run(run(Path(folder), arguments.rounds, arguments.seed))
    print(f"written to {report.write('retries', {'seed': arguments.seed, 'rounds': results})}")
    if problems:
        sys.exit("\n".join(problems))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=100, help="rounds of each kind with the mechanism on")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    return parser.parse_args(arguments)


async def run(folder: Path, rounds: int, seed: int) -> tuple[dict[str, Any], list[str]]:
    """Run every kind of round on and off; return what came of them, and what is wrong."""
    off_rounds = max(3, rounds // 10)
    runs = {
        "lost_on": await lost(folder / "lost_on", rounds, random.Random(seed), is_on=True),
        "lost_off": await lost(folder / "lost_off", off_rounds, random.Random(seed), is_on=False),
        "poisoned_on": await poisoned(folder / "poisoned_on", rounds, is_on=True),
        "poisoned_off": await poisoned(folder / "poisoned_off", off_rounds, is_on=False),
    }
    wrongs = {name: (lost_wrongs if name.startswith("lost") else poisoned_wrongs)(one) for name, one in runs.items()}
    problems = [f"{name}: {wrong}" for name in ("lost_on", "poisoned_on") for wrong in wrongs[name]]
    problems += [f"{name}: nothing was found wrong" for name in ("lost_off", "poisoned_off") if not wrongs[name]]
    return {name: shown(name, one, wrongs[name]) for name, one in runs.items()}, problems


def shown(name: str, result: Rounds, wrongs: list[str]) -> dict[str, Any]:
    """Print what came of some rounds and return it."""
    times = report.summary(result.times_s)
    ends = ", ".join(f"{reason} {number}" for reason, number in sorted(result.ends.items()))
    print(f"{name:<14} {ends}; {result.deaths} died of a request; {times['median']:.2f} s a round; judged: {wrongs}")
    return {"ends": dict(result.ends), "deaths": result.deaths, "round_s": times, "wrong": wrongs}


if __name__ == "__main__":
    main()
