"""Grammars that are tried in a worker's child while callers, deadlines and the processes themselves end."""

import asyncio
import itertools
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from pomona.v1 import generation_pb2 as pb
from pomona.v1 import worker_pb2

from tests.support.tiny_models import write_llama
from tests.support.waiting import eventually
from tests.support.worker_client import WorkerClient, client_of, refusal_of, request, stamps
from tests.support.worker_process import WorkerProcess, group_members
from tests.worker.constraints.hostile import all_hostile

# Of a running stream while others do their worst, on a machine that does other things too.
# Figures on a machine that does nothing else: 0.1 s and 0.25 s.
LONGEST_GAP_S = 10.0
STATUS_LIMIT_S = 10.0
NUM_HOSTILE = 30


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[WorkerProcess]:
    process = WorkerProcess(write_llama(tmp_path / "tiny"), max_batch_rows=4)
    yield process
    process.end()


@pytest.fixture
async def client(worker: WorkerProcess) -> AsyncIterator[WorkerClient]:
    async with client_of(worker) as connected:
        await connected.is_active()
        await connected.ask(asking(regex="a"))
        yield connected


def asking(kind: type[Any] = pb.GenerateRequest, /, request_id: str = "r1", **constraint: Any) -> Any:
    return request(kind, request_id, spec=pb.GenerationSpec(constraint=pb.Constraint(**constraint)))


def long(index: int = 0) -> dict[str, str]:
    """Return a grammar that takes longer than a trial may; each is another."""
    parts = " & ".join(f"/(?s:.*)[a-m]{{{each}}}(?s:.*)/" for each in range(1, 300))
    return {"lark_grammar": f"start: A\nA: {parts} # {index}"}


def begun(client: WorkerClient, message: Any, timeout_s: float = 30.0) -> Any:
    return client.call(type(message), message.SerializeToString(), stamps(message), timeout_s)


def trial_children(worker: WorkerProcess) -> list[int]:
    """Return the processes that try grammars for a worker."""
    return [pid for pid in worker.children() if b"trial_child" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def cpu_s(pid: int) -> float:
    """Return for how long a process has computed."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def is_trying(worker: WorkerProcess) -> int:
    """Wait until the child computes, and return it."""
    (child,) = trial_children(worker)
    before = cpu_s(child)
    await eventually(lambda: cpu_s(child) > before + 0.05)
    return child


async def num_open(client: WorkerClient) -> int:
    listing = worker_pb2.ListWorkerRequestsRequest()
    return len((await client.gateway.ListWorkerRequests(listing, metadata=client.worker.metadata())).requests)


async def test_a_caller_that_goes_away_meanwhile_leaves_nothing(worker: WorkerProcess, client: WorkerClient) -> None:
    call = begun(client, asking(**long()))
    await is_trying(worker)

    call.cancel()

    async with asyncio.timeout(5):
        while await num_open(client):
            pass
    # The trial went on for whoever may ask next.
    assert (await client.refused(asking(**long()))).reason == "CONSTRAINT_TOO_COMPLEX"
    assert (await client.ask(asking(regex="b"))).sequences[0].text == "b"


@pytest.mark.parametrize("kind", [pb.GenerateRequest, pb.StreamGenerateRequest])
async def test_a_deadline_ends_the_request_and_not_the_trial(client: WorkerClient, kind: type[Any]) -> None:
    began = time.monotonic()
    call = begun(client, asking(kind, **long()), 0.2)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        _ = [event async for event in call] if kind is pb.StreamGenerateRequest else await call

    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert time.monotonic() - began < STATUS_LIMIT_S
    assert (await client.refused(asking(kind, **long()))).reason == "CONSTRAINT_TOO_COMPLEX"
    assert await num_open(client) == 0


async def test_a_child_that_is_killed_meanwhile_is_replaced_and_the_caller_sees_nothing(
    worker: WorkerProcess, client: WorkerClient
) -> None:
    waiting = asyncio.create_task(client.refused(asking(**long())))
    after = asyncio.create_task(client.ask(asking(request_id="r2", regex="c")))
    os.kill(await is_trying(worker), signal.SIGKILL)

    assert (await waiting).reason == "CONSTRAINT_TOO_COMPLEX"
    assert (await after).sequences[0].text == "c"
    assert len(trial_children(worker)) == 1


async def test_a_worker_that_is_told_to_stop_meanwhile_stops(worker: WorkerProcess, client: WorkerClient) -> None:
    call = begun(client, asking(**long()))
    await is_trying(worker)
    began = time.monotonic()

    stopped = client.gateway.Shutdown(worker_pb2.ShutdownRequest(), metadata=worker.metadata())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    await stopped

    assert await worker.exits() == 0
    assert time.monotonic() - began < 2 * STATUS_LIMIT_S
    assert group_members(worker.pid) == []
    refusal = refusal_of(caught.value)
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAVAILABLE, "MODEL_UNLOADING")
    assert not [line for line in worker.lines() if line.get("level") == "error"]


async def test_a_child_does_not_outlive_a_worker_that_is_killed(worker: WorkerProcess, client: WorkerClient) -> None:
    call = begun(client, asking(**long()))
    child = await is_trying(worker)

    os.kill(worker.pid, signal.SIGKILL)

    await eventually(lambda: child not in group_members(worker.pid), 5)
    call.cancel()


@pytest.mark.slow
async def test_hostile_grammars_of_many_callers_do_not_hold_up_a_stream(client: WorkerClient) -> None:
    texts = [each for each in all_hostile() if each.error is not None and len(each.text) > 1000]
    fields = {"json_schema": "json_schema", "regex": "regex", "lark": "lark_grammar"}
    hostile = [*({fields[each.kind]: each.text} for each in texts), *map(long, range(NUM_HOSTILE - len(texts)))]

    began = time.monotonic()
    attacks = asyncio.gather(
        *(client.refused(asking(request_id=f"h{index}", **each)) for index, each in enumerate(hostile))
    )
    arrivals = [began]
    while not attacks.done():
        async for _ in begun(client, endless()):
            arrivals.append(time.monotonic())
            if attacks.done():
                break

    refusals = await attacks
    longest_s = max(after - before for before, after in itertools.pairwise(arrivals))
    took_s = arrivals[-1] - began
    print(f"{len(refusals)} refused in {took_s:.2f} s, {len(arrivals)} events, longest gap {longest_s:.3f} s")
    assert len(refusals) == NUM_HOSTILE
    assert {refusal.reason for refusal in refusals} == {"CONSTRAINT_INVALID", "CONSTRAINT_TOO_COMPLEX"}
    assert longest_s < LONGEST_GAP_S


def endless() -> pb.StreamGenerateRequest:
    spec = pb.GenerationSpec(stopping=pb.StoppingParams(ignore_eos=True, max_tokens=3900))
    return request(pb.StreamGenerateRequest, "stream", spec=spec)
