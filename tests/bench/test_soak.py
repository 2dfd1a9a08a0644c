"""The soak's crowd and verdicts: what is right passes, and each defect that is put into a scripted server is caught."""

import threading
from collections.abc import Callable, Iterator, Sequence

import grpc
import pytest
from pomona.v1 import generation_pb2 as g
from pomona.v1 import model_pb2

from bench.load.unruly import Crowd, Ended, Played, play
from bench.load.verdicts import MIB, Bounds, Verdict, judge
from tests.support.scripted_server import Fail, Hold, ScriptedServer, Step, answer

SEED = 20261129
BOUNDS = Bounds(stall_s=0.5, settle_s=4.0, growth_bytes=8 * MIB)
STEADY = [(float(second), 100 * MIB, 10 * MIB) for second in range(12)]
Defect = Callable[[list[g.StreamGenerateResponse]], Iterator[Step]]


async def played(defect: Defect) -> list[Verdict]:
    """Let a crowd at a server whose every answer passes through `defect`."""

    def script(_: g.StreamGenerateRequest) -> Iterator[Step]:
        yield from defect([step for step in answer("a", "b", "c") if isinstance(step, g.StreamGenerateResponse)])

    model = model_pb2.GetModelResponse(model=model_pb2.Model())
    with ScriptedServer({"StreamGenerate": script, "GetModel": [model]}) as server:
        crowd = Crowd(server.address, "m", SEED, rows=2, measured_s=0.0, seconds=0.3, per_s=60, end_limit_s=2.0)
        found = await play(crowd)
    assert found.requests
    found.memory = STEADY
    return judge(found, BOUNDS)


def broken(found: Sequence[Verdict]) -> list[str]:
    return [verdict.check for verdict in found if not verdict.holds]


def nothing(events: list[g.StreamGenerateResponse]) -> Iterator[Step]:
    yield from events


def repeats(events: list[g.StreamGenerateResponse]) -> Iterator[Step]:
    yield from (*events[:2], events[1], *events[2:])


def loses(events: list[g.StreamGenerateResponse]) -> Iterator[Step]:
    yield from (*events[:2], *events[3:])


def stops_short(events: list[g.StreamGenerateResponse]) -> Iterator[Step]:
    yield from events[:-1]


def stalls(events: list[g.StreamGenerateResponse]) -> Iterator[Step]:
    over = threading.Event()
    threading.Timer(0.8, over.set).start()
    yield from (*events[:2], Hold(over), *events[2:])


def never_ends(events: list[g.StreamGenerateResponse]) -> Iterator[Step]:
    yield from (*events[:2], Hold())


def breaks(events: list[g.StreamGenerateResponse]) -> Iterator[Step]:
    yield from (*events[:2], Fail(grpc.StatusCode.INTERNAL, "it broke"))


async def test_a_server_without_a_defect_passes() -> None:
    assert broken(await played(nothing)) == []


@pytest.mark.parametrize(
    ("defect", "check"),
    [
        (repeats, "event numbers have no gap and no repeat, and streams keep to the contract"),
        (loses, "event numbers have no gap and no repeat, and streams keep to the contract"),
        (stops_short, "event numbers have no gap and no repeat, and streams keep to the contract"),
        (stalls, "no admitted request waits 0.5 s for an event"),
        (never_ends, "every stream ended in a status"),
        (breaks, "every status is one that its client expects"),
    ],
)
async def test_a_defect_is_caught(defect: Defect, check: str) -> None:
    assert check in broken(await played(defect))


def test_a_worker_that_grows_beside_its_caches_is_caught() -> None:
    growing = [(second, footprint + round(second) * MIB, caches) for second, footprint, caches in STEADY]
    assert broken(judge(_one_request(growing), BOUNDS)) == []
    doubling = [(second, footprint + round(second) * 2 * MIB, caches) for second, footprint, caches in STEADY]
    assert broken(judge(_one_request(doubling), BOUNDS)) == [
        "the worker does not grow once settled, besides its caches"
    ]


def test_caches_may_grow() -> None:
    growing = [
        (second, footprint + round(second) * 9 * MIB, round(second) * 9 * MIB) for second, footprint, _ in STEADY
    ]
    assert broken(judge(_one_request(growing), BOUNDS)) == []


def _one_request(memory: list[tuple[float, int, int]]) -> Played:
    request = Ended("plain", 0.0, 1.0, "OK", is_started=True, num_tokens=1)
    return Played(1.0, [request], memory)
