"""Whether several processes had one device each for itself: what they noted themselves, beside each other."""

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, order=True)
class Use:
    """What one process did with the device without a break, in nanoseconds of the clock that all processes share."""

    begin_ns: int
    end_ns: int
    name: str


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two processes that used the device at once."""

    first: Use
    second: Use


def read_uses(folder: Path) -> list[Use]:
    """Read what the players of a folder noted, each in a file of its own; a line that was not written whole is none."""
    uses: list[Use] = []
    for file in sorted(folder.glob("*.uses")):
        for line in file.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                begin_ns, end_ns = json.loads(line)
                uses.append(Use(begin_ns, end_ns, file.stem))
    return uses


def overlaps(uses: Iterable[Use]) -> list[Overlap]:
    """Return all pairs of neighbours in time that overlap; none: nobody ever shared the device."""
    found: list[Overlap] = []
    last: Use | None = None
    for use in sorted(uses):
        if last is not None and use.begin_ns < last.end_ns and use.name != last.name:
            found.append(Overlap(last, use))
        if last is None or use.end_ns > last.end_ns:
            last = use
    return found


def seconds_by_name(uses: Sequence[Use]) -> Mapping[str, float]:
    """Return how long each process had the device."""
    totals: dict[str, float] = {}
    for use in uses:
        totals[use.name] = totals.get(use.name, 0.0) + (use.end_ns - use.begin_ns) / 1e9
    return totals


def gaps_s(uses: Iterable[Use], name: str) -> list[float]:
    """Return how long one process was without the device each time, from the end of a use to the next."""
    own = sorted(use for use in uses if use.name == name)
    return [(after.begin_ns - before.end_ns) / 1e9 for before, after in itertools.pairwise(own)]
