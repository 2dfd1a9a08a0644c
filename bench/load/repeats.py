"""A long prompt again: its time to first token cold, warm, and after a restart that has a tier on disk to read from."""

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench import report
from bench.load.arrivals import ANSWER_TOKENS, CONTEXT_TOKENS
from bench.load.plan import Job, Lane, milliseconds
from bench.load.systems import Play, Setup, System, find

LEAST = {"warm": 10.0, "restarted": 5.0}
OURS = "pomona"


@dataclass(frozen=True)
class Repeats:
    """What is measured.

    Attributes:
        prompt_tokens: of each prompt.
        prompts: how many there are.
        folder_setting: dotted name of Pomona's setting for the folder on disk; None: no restart is measured.
        limit_s: for one pass over the prompts.
    """

    prompt_tokens: int
    prompts: int
    folder_setting: str | None
    limit_s: float


def measure(setup: Setup, systems: Mapping[str, System], load: Repeats) -> dict[str, Any]:
    """Run every system that keeps prompts.

    Returns:
        By system: `what`, `version`, milliseconds `cold`, `warm` and maybe `restarted`, and `gain` over cold.
    """
    makers = setup.prompts()
    jobs = [makers.job(load.prompt_tokens, ANSWER_TOKENS) for _ in range(load.prompts)]
    results: dict[str, Any] = {}
    for name, system in systems.items():
        print(f"  {system.what}", file=sys.stderr, flush=True)
        if name == OURS:
            times = _pomona(setup, system, jobs, load)
        else:
            with system.open(len(jobs), CONTEXT_TOKENS) as play:
                times = {"cold": _pass(play, jobs, load), "warm": _pass(play, jobs, load)}
        results[name] = {"what": system.what, "version": system.version, **_reduced(times)}
    return results


def _pomona(setup: Setup, system: System, jobs: Sequence[Job], load: Repeats) -> dict[str, list[float]]:
    if load.folder_setting is None:
        with system.open(len(jobs), CONTEXT_TOKENS) as play:
            return {"cold": _pass(play, jobs, load), "warm": _pass(play, jobs, load)}
    with tempfile.TemporaryDirectory(prefix="bench-tier-") as folder:
        changes = {**setup.changes, load.folder_setting: str(Path(folder))}
        tiered = find(replace(setup, changes=changes), [OURS])[OURS]
        with tiered.open(len(jobs), CONTEXT_TOKENS) as play:
            times = {"cold": _pass(play, jobs, load), "warm": _pass(play, jobs, load)}
        with tiered.open(len(jobs), CONTEXT_TOKENS) as play:
            return {**times, "restarted": _pass(play, jobs, load)}


def _pass(play: Play, jobs: Sequence[Job], load: Repeats) -> list[float]:
    streams = play([Lane("repeat", tuple(jobs))], load.limit_s)
    return [stream.first_s for stream in streams if stream.first_s is not None]


def _reduced(times: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    found: dict[str, Any] = {phase: milliseconds(samples) for phase, samples in times.items()}
    cold = found["cold"]
    gains = {phase: cold["p50"] / found[phase]["p50"] for phase in LEAST if cold and found.get(phase)}
    return {**found, "gain": gains}


def show(results: Mapping[str, Any]) -> None:
    """Print a paragraph a system."""
    for name, system in results.items():
        print(f"\n{system['what']}")
        for phase in ("cold", *LEAST):
            if phase in system:
                print(f"  {phase:10} {report.tail(system[phase], 'ms')}")
        for phase, gain in system["gain"].items():
            verdict = ""
            if name == OURS:
                verdict = f": {'holds' if gain >= LEAST[phase] else 'DOES NOT HOLD'}, at least {LEAST[phase]:g}"
            print(f"  {phase} against cold: {gain:.1f} times sooner{verdict}")
    if OURS in results and "restarted" not in results[OURS]:
        print("\nno restart was measured: --tier-setting names the setting for a folder on disk")
