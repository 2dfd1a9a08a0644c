"""A workload of vectors or scores that a test ticks by hand: no thread, no event loop."""

from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from models.checkpoint.checkpoint import open_checkpoint
from models.checkpoint.pooling import PoolingMode
from models.embedding.embedder import read_embedder
from models.embedding.reranker import Reranker
from models.embedding.vectors import Floats, VectorForm
from models.registry import load
from models.step import NumericPath
from tests.support.tiny_embedders import DIMENSIONS
from tests.worker.text_driving import Clock
from worker.embedding.loaded import LoadedEncoder
from worker.embedding.request import EncodeRequest, VectorWish
from worker.events import Completed, Embedded, Event, Failed, Scored
from worker.job import Job
from worker.outbox import Outbox
from worker.text_settings import TextSettings
from worker.workloads.embedding import EmbeddingWorkload, EncodePlan

T = TypeVar("T")
TICK_S = 0.001
MAX_TICKS = 5_000
LAST = VectorWish(PoolingMode.LAST, VectorForm(DIMENSIONS, is_normalized=True))


def load_encoder(
    folder: Path, path: NumericPath = NumericPath.FAST, *, is_reranker: bool = False, max_tokens: int = 1000
) -> LoadedEncoder:
    """Load a checkpoint as the worker does."""
    checkpoint = open_checkpoint(folder)
    if is_reranker:
        loaded = load(checkpoint, path, lambda _: None)
        return LoadedEncoder(loaded, max_tokens, reranker=Reranker(loaded.tokenizer))
    headless = replace(checkpoint, text=replace(checkpoint.text, tie_word_embeddings=True))
    return LoadedEncoder(load(headless, path, lambda _: None), max_tokens, embedder=read_embedder(checkpoint, folder))


def asking(
    key: str, *inputs: Sequence[int], wish: VectorWish | None = LAST, priority: int = 0, deadline: float | None = None
) -> EncodeRequest:
    """Return a request for inputs in tokens."""
    ids = tuple(array("I", each) for each in inputs)
    return EncodeRequest(key, ids, wish, priority, deadline, key)


class Driven:
    """Ticks a workload and keeps what it tells.

    Attributes:
        events: of each request by its key, as posted.
        plans: one for each tick that did something.
    """

    def __init__(self, loaded: LoadedEncoder, settings: TextSettings | None = None) -> None:
        self.clock = Clock()
        self.events: dict[str, list[Event]] = {}
        self.plans: list[EncodePlan] = []
        self._jobs: dict[str, Job[EncodeRequest]] = {}
        self.workload = EmbeddingWorkload(lambda _: loaded, settings or TextSettings(), clock=self.clock)
        self.workload.load(lambda _: None)
        self._room = dict(self.workload._waiting._room._left)

    def admit(self, *requests: EncodeRequest) -> None:
        for request in requests:
            job = Job(request, Outbox(1 << 18), self.clock())
            self._jobs[request.key] = job
            self.events[request.key] = []
            self.workload.admit(job)

    def tick_once(self) -> bool:
        """Do one tick; return whether there was work."""
        self.clock.now += TICK_S
        plan = self.workload.plan()
        if plan is None:
            return False
        self.plans.append(plan)
        self.workload.run(plan, self)
        return True

    def finish(self) -> None:
        """Tick until all requests have ended."""
        for _ in range(MAX_TICKS):
            if not self._jobs:
                return
            assert self.tick_once(), f"nothing moves {', '.join(self._jobs)}"
        raise AssertionError(f"{', '.join(self._jobs)} never end")

    def drop(self, key: str) -> None:
        del self._jobs[key]
        self.workload.drop(key)

    def encode(self, *requests: EncodeRequest) -> list[list[bytes]]:
        """Run requests together to their ends, and return the values of each one's inputs."""
        self.admit(*requests)
        self.finish()
        return [self.values(request.key) for request in requests]

    def values(self, key: str) -> list[bytes]:
        told = {event.index: event.values for event in self.events[key] if isinstance(event, Embedded)}
        return [told[index] for index in sorted(told)]

    def vectors(self, key: str) -> list[Floats]:
        return [np.frombuffer(each, dtype=np.float32).reshape(-1, DIMENSIONS) for each in self.values(key)]

    def scores(self, key: str) -> list[Scored]:
        return sorted((each for each in self.events[key] if isinstance(each, Scored)), key=lambda each: each.index)

    def assert_nothing_is_held(self) -> None:
        encoder, turns = self.workload._ready, self.workload._waiting
        assert len(turns) == 0
        assert encoder.cache.num_tokens == 0
        assert turns._room._left == self._room
        assert len(turns._room._free) == encoder.cache.num_slots

    # What a workload reports to.

    def post(self, job: Job[EncodeRequest], event: Event) -> None:
        assert self._jobs.get(job.request.key) is job, f"{event} after the end"
        self.events[job.request.key].append(event)
        if isinstance(event, Completed | Failed):
            del self._jobs[job.request.key]

    def flush(self) -> None:
        """Nothing waits."""

    def aside(self, work: Callable[[], T]) -> Future[T]:
        raise NotImplementedError

    def tick(self) -> None:
        """The engine counts it."""
