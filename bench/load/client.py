"""The client's process: takes a plan on standard input, puts it on a server, and prints what came of each stream.

A process of its own, so that what measures takes no time from what starts servers, and the same for all of them.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench import report
from bench.load.plan import (
    OK,
    Job,
    Lane,
    Stream,
    decode_plan,
    decode_streams,
    encode_plan,
    encode_streams,
)
from bench.load.targets import PROGRESS, RefusedError, Target, make

GRACE_S = 60.0


def run(lanes: Sequence[Lane], limit_s: float, target: Mapping[str, Any]) -> list[Stream]:
    """Put a load on a server from a process of its own, and return what came of it."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "bench.load.client"],
        cwd=report.ROOT,
        env={**os.environ, "PYTHONPATH": str(report.ROOT)},
        input=encode_plan(lanes, limit_s, target),
        stdout=subprocess.PIPE,
        text=True,
        timeout=limit_s + GRACE_S,
        check=True,
    )
    return decode_streams(done.stdout)


async def play(lanes: Sequence[Lane], limit_s: float, target: Target) -> list[Stream]:
    """Run every lane; cut off what is left at the limit, and the background lanes when the others have ended."""
    start = time.perf_counter()
    streams: list[Stream] = []
    tasks = {asyncio.create_task(_lane(lane, target, start, streams)): lane for lane in lanes}
    waited_for = [task for task, lane in tasks.items() if not lane.is_background] or list(tasks)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await asyncio.gather(*waited_for)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return streams


async def _lane(lane: Lane, target: Target, start: float, streams: list[Stream]) -> None:
    await asyncio.sleep(max(0.0, lane.start_s - (time.perf_counter() - start)))
    for job in lane.jobs:
        stream = Stream(lane.kind, time.perf_counter() - start)
        streams.append(stream)
        await _take(stream, target, job, lane.with_progress, lambda: time.perf_counter() - start)


async def _take(stream: Stream, target: Target, job: Job, with_progress: bool, clock: Callable[[], float]) -> None:
    try:
        async with contextlib.aclosing(target.stream(job, with_progress=with_progress)) as parts:
            async for count in parts:
                if count == PROGRESS:
                    stream.progress.append(clock())
                else:
                    stream.events.append((clock(), count))
        stream.status = OK
        if not target.counts_tokens:
            stream.count_the_rest(job.num_tokens)
    except (RefusedError, OSError) as error:
        stream.status = str(error)


async def _main() -> None:
    lanes, limit_s, facts = decode_plan(sys.stdin.read())
    async with make(facts) as target:
        streams = await play(lanes, limit_s, target)
    print(encode_streams(streams))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=report.loop_factory()) as runner:
        runner.run(_main())
