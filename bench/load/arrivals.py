"""Long prompts that arrive while others are answered: what the running streams feel of them, and how long each waits.

Before the first long prompt arrives the running streams are alone, which gives the time of a step. For a server that
tells of each chunk, one long prompt alone before that gives the time of a chunk.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from bench import report
from bench.load.plan import Lane, Stream, milliseconds, statuses
from bench.load.prompts import Prompts
from bench.load.systems import Play, Setup, System

CONTEXT_TOKENS = 8192
SHORT_PROMPT_TOKENS = 32
RUNNING_TOKENS = 1024
RUNNING_TURNS = 8
ANSWER_TOKENS = 16


@dataclass(frozen=True)
class Arrivals:
    """What is measured.

    Attributes:
        running: streams that are answered all the time.
        prompt_tokens: of each long prompt.
        every_s: a long prompt arrives so often, and half-way between two of them a short one.
        during_s: for so long.
        calm_s: before the first of them.
        limit_s: for all to be answered.
    """

    running: int
    prompt_tokens: int
    every_s: float
    during_s: float
    calm_s: float
    limit_s: float

    @property
    def count(self) -> int:
        """How many long prompts arrive."""
        return max(1, round(self.during_s / self.every_s))


def measure(setup: Setup, systems: Mapping[str, System], load: Arrivals) -> dict[str, Any]:
    """Run every system once.

    Returns:
        By system: `what`, `version` and the figures of `figures`.
    """
    results: dict[str, Any] = {}
    for name, system in systems.items():
        print(f"  {system.what}", file=sys.stderr, flush=True)
        prompts = setup.prompts()
        with system.open(load.running + 2 * load.count, CONTEXT_TOKENS) as play:
            chunks_ms = _chunks_ms(play, prompts, load) if name == "pomona" else None
            streams = play(_lanes(prompts, load), load.limit_s)
        results[name] = {"what": system.what, "version": system.version, **figures(streams, load, chunks_ms)}
    return results


def _chunks_ms(play: Play, prompts: Prompts, load: Arrivals) -> dict[str, float | int] | None:
    """Return how long the chunks of one long prompt take that is alone."""
    job = prompts.job(load.prompt_tokens, 1)
    alone = play([Lane("alone", (job,), with_progress=True)], load.limit_s)[0]
    moments = [alone.sent_s, *alone.progress]
    return milliseconds([after - before for before, after in pairwise(moments)])


def _lanes(prompts: Prompts, load: Arrivals) -> list[Lane]:
    def lanes(kind: str, prompt_tokens: int, first_s: float) -> list[Lane]:
        return [
            Lane(kind, (prompts.job(prompt_tokens, ANSWER_TOKENS),), first_s + index * load.every_s)
            for index in range(load.count)
        ]

    running = [
        Lane(
            "running",
            tuple(prompts.job(SHORT_PROMPT_TOKENS, RUNNING_TOKENS) for _ in range(RUNNING_TURNS)),
            is_background=True,
        )
        for _ in range(load.running)
    ]
    long = lanes("long", load.prompt_tokens, load.calm_s)
    return [*running, *long, *lanes("short", SHORT_PROMPT_TOKENS, load.calm_s + load.every_s / 2)]


def figures(streams: Sequence[Stream], load: Arrivals, chunks_ms: Mapping[str, float | int] | None) -> dict[str, Any]:
    """Reduce what came: gaps of the running streams when calm and while long prompts are there, and all first tokens.

    `bound_ms`, where the chunks were measured, is the slowest chunk and the slowest step (p99) together.
    """
    by_kind = {kind: [stream for stream in streams if stream.kind == kind] for kind in ("running", "long", "short")}
    busy_until_s = max((stream.events[0][0] for stream in by_kind["long"] if stream.events), default=load.limit_s)
    # The running streams' own prompts are over by then.
    warm_s = max((stream.events[0][0] for stream in by_kind["running"][: load.running] if stream.events), default=0.0)
    calm = milliseconds([gap for stream in by_kind["running"] for gap in stream.gaps(warm_s, load.calm_s)])
    busy = milliseconds([gap for stream in by_kind["running"] for gap in stream.gaps(load.calm_s, busy_until_s)])
    found: dict[str, Any] = {
        "step_ms": calm,
        "gap_ms": busy,
        "chunk_ms": chunks_ms,
        "ttft_long_ms": milliseconds(_first(by_kind["long"])),
        "ttft_short_ms": milliseconds(_first(by_kind["short"])),
        "busy_s": busy_until_s - load.calm_s,
        "running_tokens_per_s": _rate(by_kind["running"], load.calm_s, busy_until_s),
        "statuses": {kind: statuses(some) for kind, some in by_kind.items()},
    }
    if chunks_ms is not None and calm is not None and busy is not None:
        bound_ms = chunks_ms["max"] + calm["p99"]
        found["bound_ms"] = bound_ms
        found["holds"] = busy["p99"] <= bound_ms
    return found


def show(results: Mapping[str, Any]) -> None:
    """Print a paragraph a system."""
    for system in results.values():
        print(f"\n{system['what']}")
        print(f"  next token, nothing else there      {report.tail(system['step_ms'], 'ms')}")
        print(f"  next token while long prompts come  {report.tail(system['gap_ms'], 'ms')}")
        print(f"  first token of a long prompt        {report.tail(system['ttft_long_ms'], 'ms')}")
        print(f"  first token of a short one          {report.tail(system['ttft_short_ms'], 'ms')}")
        print(f"  running streams together            {system['running_tokens_per_s']:.4g} tokens/s", end="")
        print(f" for the {system['busy_s']:.1f} s until all long ones had their first token")
        print(f"  ends: {system['statuses']}")
        if "bound_ms" in system:
            verdict = "holds" if system["holds"] else "DOES NOT HOLD"
            print(f"  a chunk of a prompt that is alone   {report.tail(system['chunk_ms'], 'ms')}")
            print(f"  gap p99 at most one chunk and one step, {system['bound_ms']:.4g} ms: {verdict}")


def _first(streams: Sequence[Stream]) -> list[float]:
    return [stream.first_s for stream in streams if stream.first_s is not None]


def _rate(streams: Sequence[Stream], start_s: float, end_s: float) -> float:
    tokens = sum(count for stream in streams for moment, count in stream.events if start_s <= moment <= end_s)
    return tokens / max(end_s - start_s, 1e-9)
