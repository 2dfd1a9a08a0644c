"""How a long run under faults ends: what it found, printed and kept, and that it finds its seeded defect."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from bench import report
from bench.load.verdicts import Verdict


def show(title: str, found: Sequence[Verdict]) -> None:
    """Print the verdicts of one run."""
    print(title, flush=True)
    for verdict in found:
        print(f"  {'holds' if verdict.holds else 'DOES NOT HOLD'}: {verdict.check} ({verdict.detail})", flush=True)


def finish(name: str, seed: int, runs: Mapping[str, Sequence[Verdict]], defective: Sequence[str], **more: Any) -> None:
    """Write `bench/results/NAME.json` and end the process with 1 where it did not go as it must.

    Args:
        name: of the benchmark.
        seed: that everything followed from.
        runs: the verdicts of each run by its name.
        defective: runs with a seeded defect, in which a verdict must not hold.
        **more: figures to be kept.
    """
    kept = {title: [asdict(one) for one in found] for title, found in runs.items()}
    path = report.write(name, {"benchmark": name, "seed": seed, "defective": list(defective), "runs": kept, **more})
    print("written:", path.relative_to(report.ROOT))
    problems = problems_of(runs, defective)
    if problems:
        sys.exit(f"{'; '.join(problems)}; seed {seed}")


def problems_of(runs: Mapping[str, Sequence[Verdict]], defective: Sequence[str]) -> list[str]:
    """Return what did not go as it must: a check that does not hold, or a defect that was not caught."""
    problems: list[str] = []
    for title, found in runs.items():
        broken = [one.check for one in found if not one.holds]
        if title in defective and not broken:
            problems.append(f"{title}: the defect was not caught")
        if title not in defective and broken:
            problems.append(f"{title}: {', '.join(broken)}")
    return problems
