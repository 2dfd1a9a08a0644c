"""Streams straight from a worker, without a gateway."""

import asyncio
import itertools
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pomona.v1 import generation_pb2 as pb

from bench.load.plan import Job
from tests.support.worker_client import WorkerClient, client_of, request, stamps
from tests.support.worker_process import WorkerProcess


async def worker_gaps(checkpoint: Path, settings: Mapping[str, Any], rounds: Sequence[Sequence[Job]]) -> list[float]:
    """Start a worker and give it each round's jobs at once.

    Returns:
        The median of the seconds between two tokens of a stream, by round.
    """
    worker = WorkerProcess(checkpoint, **settings)
    try:
        async with client_of(worker) as client:
            await client.is_active()
            return [statistics.median(await _gaps(client, jobs)) for jobs in rounds]
    finally:
        worker.end()


async def _gaps(client: WorkerClient, jobs: Sequence[Job]) -> list[float]:
    streams = await asyncio.gather(*(_stream(client, job, index) for index, job in enumerate(jobs)))
    return [gap for stream in streams for gap in stream]


async def _stream(client: WorkerClient, job: Job, index: int) -> list[float]:
    message = request(pb.StreamGenerateRequest, f"straight-{index}")
    message.spec.prompt = job.prompt
    message.spec.stopping.max_tokens = job.num_tokens
    message.spec.stopping.ignore_eos = True
    call = client.call(type(message), message.SerializeToString(), stamps(message), timeout=None)
    moments = [time.perf_counter() async for event in call if event.WhichOneof("event") == "delta"]
    return [after - before for before, after in itertools.pairwise(moments)]
