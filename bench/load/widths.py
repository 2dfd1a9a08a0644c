"""Streams side by side: how many tokens a second they get together, how long each waits for its first and its next."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench import report
from bench.load.plan import Lane, Stream, milliseconds, statuses, throughput
from bench.load.prompts import Prompts
from bench.load.systems import Setup, System

OURS = "pomona"
SPARE_TOKENS = 16


@dataclass(frozen=True)
class Widths:
    """What is measured.

    Attributes:
        widths: numbers of streams.
        turns: generations of each stream, one after the other.
        prompt_tokens: of each prompt.
        num_tokens: of each answer.
        rounds: how often each system is started.
        limit_s: for one width.
        slow_limit_s: the same for a system that is slow.
    """

    widths: Sequence[int]
    turns: int
    prompt_tokens: int
    num_tokens: int
    rounds: int
    limit_s: float
    slow_limit_s: float


def measure(setup: Setup, systems: Mapping[str, System], load: Widths) -> dict[str, Any]:
    """Run every system once a round, at every width, one after the other.

    Returns:
        By system: `what`, `version`, and by width the figures of `figures`.
    """
    runs: dict[str, dict[int, list[list[Stream]]]] = {name: {width: [] for width in load.widths} for name in systems}
    for index in range(load.rounds):
        for name, system in systems.items():
            print(f"  round {index + 1} of {load.rounds}: {system.what}", file=sys.stderr, flush=True)
            for width, streams in _one_round(setup, system, load, index).items():
                runs[name][width].append(streams)
    return {
        name: {
            "what": systems[name].what,
            "version": systems[name].version,
            **{str(width): figures(found) for width, found in by_width.items()},
        }
        for name, by_width in runs.items()
    }


def _one_round(setup: Setup, system: System, load: Widths, index: int) -> dict[int, list[Stream]]:
    prompts = setup.prompts()
    for _ in range(index):
        _lanes(prompts, sum(load.widths), load)  # so that no round has the prompts of another
    limit_s = load.slow_limit_s if system.is_slow else load.limit_s
    context_tokens = load.prompt_tokens + load.num_tokens + SPARE_TOKENS
    with system.open(max(load.widths), context_tokens) as play:
        return {width: play(_lanes(prompts, width, load), limit_s) for width in load.widths}


def _lanes(prompts: Prompts, width: int, load: Widths) -> list[Lane]:
    jobs = range(load.turns)
    return [
        Lane(str(width), tuple(prompts.job(load.prompt_tokens, load.num_tokens) for _ in jobs)) for _ in range(width)
    ]


def figures(runs: Sequence[Sequence[Stream]]) -> dict[str, Any]:
    """Reduce the runs of one width: `tokens_per_s` over runs, `ttft_ms` and `gap_ms` over all streams of all runs."""
    streams = [stream for run in runs for stream in run]
    return {
        "tokens_per_s": report.summary([throughput(run) for run in runs]),
        "ttft_ms": milliseconds([stream.first_s for stream in streams if stream.first_s is not None]),
        "gap_ms": milliseconds([gap for stream in streams for gap in stream.gaps()]),
        "statuses": statuses(streams),
    }


def goals(results: Mapping[str, Any], widths: Sequence[int]) -> list[dict[str, Any]]:
    """Return what is to hold of the medians, and whether it does."""
    if OURS not in results:
        return []
    ours = {width: _median(results, OURS, width) for width in widths}
    found: list[dict[str, Any]] = []
    if 1 in widths and 16 in widths:
        found.append(_goal("16 streams against one of Pomona's own", ours[16], ours[1], 4.0))
    for width in widths:
        rivals = {name: _median(results, name, width) for name in results if name != OURS}
        found += [
            _goal(f"{width} streams against {results[name]['what']}", ours[width], rate, 1.0)
            for name, rate in rivals.items()
        ]
    if 16 in widths and (rivals := [_median(results, name, 16) for name in results if name != OURS]):
        found.append(_goal("16 streams against the best peer (the aim)", ours[16], max(rivals), 1.5))
    return found


def show(results: Mapping[str, Any], widths: Sequence[int]) -> None:
    """Print a block a width, a paragraph a system, then the goals."""
    for width in widths:
        print(f"\n{width} stream{'s' if width > 1 else ''}")
        for system in results.values():
            found = system[str(width)]
            print(f"  {system['what']}")
            print(f"    together    {report.spread(found['tokens_per_s'], 'tokens/s')}")
            print(f"    first token  {report.tail(found['ttft_ms'], 'ms')}")
            print(f"    next token   {report.tail(found['gap_ms'], 'ms')}")
            if set(found["statuses"]) != {"OK"}:
                print(f"    ends: {found['statuses']}")
    print()
    for goal in goals(results, widths):
        verdict = "holds" if goal["holds"] else "DOES NOT HOLD"
        print(f"{goal['what']}, at least {goal['least']:g} times: {verdict}, {goal['ratio']:.2f}")


def _median(results: Mapping[str, Any], name: str, width: int) -> float:
    return results[name][str(width)]["tokens_per_s"]["median"]


def _goal(what: str, ours: float, theirs: float, least: float) -> dict[str, Any]:
    ratio = ours / theirs if theirs else float("inf")
    return {"what": what, "least": least, "ratio": ratio, "holds": ratio >= least}
