"""A load as plain data: which streams are asked for and when, and what came of each.

A plan goes to the client's process as JSON and the record of it comes back the same way, so that the same load can be
put on any server, and on what runs within a process.
"""

import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bench import report

OK = "OK"
CUT_OFF = "CUT_OFF"


@dataclass(frozen=True, slots=True)
class Job:
    """One generation, greedy and past any end of text.

    Attributes:
        prompt: text, without a chat template.
        token_ids: the same, for what takes no text.
        num_tokens: to generate.
    """

    prompt: str
    token_ids: tuple[int, ...]
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Lane:
    """Jobs one after the other.

    Attributes:
        kind: what the figures of its streams are filed under.
        jobs: each begins when the one before has ended.
        start_s: when the first begins, from the start of the load.
        is_background: the load does not wait for this lane: it is cut off when the others have ended.
        with_progress: ask to be told of each chunk of a prompt, of a server that can.
    """

    kind: str
    jobs: tuple[Job, ...]
    start_s: float = 0.0
    is_background: bool = False
    with_progress: bool = False


@dataclass(slots=True)
class Stream:
    """What a client got for one job; times in seconds from the start of the load.

    Attributes:
        kind: its lane's.
        sent_s: when it was asked for.
        events: when a part of the answer came, and how many tokens it had.
        progress: when the client was told of a chunk of the prompt.
        status: `OK`, `CUT_OFF`, or what else it ended with.
    """

    kind: str
    sent_s: float
    events: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    progress: list[float] = field(default_factory=list[float])
    status: str = CUT_OFF

    @property
    def num_tokens(self) -> int:
        """How many tokens came."""
        return sum(count for _, count in self.events)

    @property
    def first_s(self) -> float | None:
        """How long the first token took; None: none came."""
        return self.events[0][0] - self.sent_s if self.events else None

    def count_the_rest(self, num_tokens: int) -> None:
        """Give what is missing to `num_tokens` to the last part: tokens whose text came with another's, or had none."""
        if self.events:
            moment, count = self.events[-1]
            self.events[-1] = (moment, count + max(0, num_tokens - self.num_tokens))

    def gaps(self, start_s: float = 0.0, end_s: float = float("inf")) -> list[float]:
        """Return the seconds between parts of the answer, of those gaps that ended in this span."""
        times = [moment for moment, _ in self.events]
        return [after - before for before, after in itertools.pairwise(times) if start_s <= after <= end_s]


def encode_plan(lanes: Sequence[Lane], limit_s: float, target: Mapping[str, Any]) -> str:
    """Write a plan for the client's process.

    Args:
        lanes: the load.
        limit_s: what has not ended by then is cut off.
        target: what is asked, as `bench.load.targets.make` reads it.
    """
    return json.dumps({"lanes": [asdict(lane) for lane in lanes], "limit_s": limit_s, "target": target})


def decode_plan(text: str) -> tuple[list[Lane], float, dict[str, Any]]:
    """Read what `encode_plan` wrote."""
    read = json.loads(text)
    return [_lane(lane) for lane in read["lanes"]], read["limit_s"], read["target"]


def encode_streams(streams: Sequence[Stream]) -> str:
    """Write what came of a plan."""
    return json.dumps([asdict(stream) for stream in streams])


def decode_streams(text: str) -> list[Stream]:
    """Read what `encode_streams` wrote."""
    return [_stream(stream) for stream in json.loads(text)]


def throughput(streams: Sequence[Stream]) -> float:
    """Return tokens a second of all streams together, from the first request to the last token; 0 where none came."""
    ends = [stream.events[-1][0] for stream in streams if stream.events]
    if not ends:
        return 0.0
    return sum(stream.num_tokens for stream in streams) / (max(ends) - min(stream.sent_s for stream in streams))


def milliseconds(times_s: Sequence[float]) -> dict[str, float | int] | None:
    """Return p50, p99, extremes and count of times; None where there are none."""
    if not times_s:
        return None
    return report.quantiles([time_s * 1e3 for time_s in times_s])


def statuses(streams: Sequence[Stream]) -> dict[str, int]:
    """Count how streams ended."""
    return dict(Counter(stream.status for stream in streams))


def _lane(raw: Mapping[str, Any]) -> Lane:
    jobs = tuple(_job(job) for job in raw["jobs"])
    return Lane(raw["kind"], jobs, raw["start_s"], raw["is_background"], raw["with_progress"])


def _job(raw: Mapping[str, Any]) -> Job:
    return Job(raw["prompt"], tuple(raw["token_ids"]), raw["num_tokens"])


def _stream(raw: Mapping[str, Any]) -> Stream:
    events = [(moment, count) for moment, count in raw["events"]]
    return Stream(raw["kind"], raw["sent_s"], events, raw["progress"], raw["status"])
