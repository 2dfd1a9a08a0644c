"""The same plans on mlx-lm's BatchGenerator, within one process: no HTTP, no tokenizer, nothing before the clock.

Runs as a process of its own, which takes a plan on standard input like the client's.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import report
from bench.load.plan import OK, Job, Lane, Stream, decode_plan, decode_streams, encode_plan, encode_streams

GRACE_S = 120.0
IDLE_S = 0.001


def run(
    python: str, folder: Path, lanes: Sequence[Lane], limit_s: float, threads: int, *, openblas: bool
) -> list[Stream]:
    """Put a load on a BatchGenerator in a fresh process, and return what came of it."""
    target = {"folder": str(folder), "threads": threads, "openblas": openblas}
    done = subprocess.run(
        [python, "-P", "-m", "bench.load.batches"],
        cwd=report.ROOT,
        env={**os.environ, "PYTHONPATH": str(report.ROOT), "OPENBLAS_NUM_THREADS": str(threads)},
        input=encode_plan(lanes, limit_s, target),
        stdout=subprocess.PIPE,
        text=True,
        timeout=limit_s + GRACE_S,
        check=True,
    )
    return decode_streams(done.stdout)


class Player:
    """Feeds a generator by a plan and keeps what comes out.

    Args:
        generator: mlx-lm's, or one with its `insert` and `next`.
        lanes: the plan.
    """

    def __init__(self, generator: Any, lanes: Sequence[Lane]) -> None:
        self.streams: list[Stream] = []
        self._generator = generator
        self._start = time.perf_counter()
        self._waiting = [(lane, list(lane.jobs), lane.start_s) for lane in lanes]
        self._running: dict[int, tuple[Stream, Lane, list[Job]]] = {}

    def play(self, limit_s: float) -> None:
        """Run until all but the background lanes have ended, or the limit."""
        while self._now() < limit_s and not self._is_over():
            self._insert_due()
            if not self._running:
                time.sleep(IDLE_S)
                continue
            _, responses = self._generator.next()
            self._keep(responses)

    def _insert_due(self) -> None:
        for entry in [entry for entry in self._waiting if entry[2] <= self._now()]:
            self._waiting.remove(entry)
            lane, jobs, _ = entry
            job = jobs.pop(0)
            stream = Stream(lane.kind, self._now())
            self.streams.append(stream)
            uid = self._generator.insert([list(job.token_ids)], [job.num_tokens])[0]
            self._running[uid] = (stream, lane, jobs)

    def _keep(self, responses: Sequence[Any]) -> None:
        moment = self._now()
        for response in responses:
            stream, lane, jobs = self._running[response.uid]
            stream.events.append((moment, 1))
            if response.finish_reason is not None:
                stream.status = OK
                del self._running[response.uid]
                if jobs:
                    self._waiting.append((lane, jobs, 0.0))

    def _is_over(self) -> bool:
        lanes = [lane for lane, _, _ in self._waiting] + [lane for _, lane, _ in self._running.values()]
        return all(lane.is_background for lane in lanes)

    def _now(self) -> float:
        return time.perf_counter() - self._start


def main() -> None:
    """Play one plan and print what came of it."""
    lanes, limit_s, target = decode_plan(sys.stdin.read())
    if target["openblas"]:
        import native.blas

        native.blas.load(target["threads"])
    from mlx_lm.generate import BatchGenerator
    from mlx_lm.utils import load_model

    model, _ = load_model(Path(target["folder"]))
    warm_up = BatchGenerator(model)
    warm_up.insert([[1, 2, 3, 4]], [2])
    while warm_up.next_generated():
        pass
    player = Player(BatchGenerator(model), lanes)
    player.play(limit_s)
    print(encode_streams(player.streams))


if __name__ == "__main__":
    main()
