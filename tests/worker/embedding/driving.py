"""A workload of vectors or scores that a test ticks by hand: no thread, no event loop."""

from array import array
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from models.checkpoint.checkpoint import open_checkpoint
from models.checkpoint.pooling import PoolingMode
from models.embedding.embedder import for_vectors, read_embedder
from models.embedding.reranker import Reranker
from models.embedding.vectors import Floats, VectorForm
from models.registry import load
from models.step import NumericPath
from tests.support.tiny_embedders import DIMENSIONS
from tests.worker.ticking import Ticked
from worker.embedding.loaded import LoadedEncoder
from worker.embedding.request import EncodeRequest, VectorWish
from worker.events import Embedded, Scored
from worker.text_settings import TextSettings
from worker.workloads.embedding import EmbeddingWorkload

LAST = VectorWish(PoolingMode.LAST, VectorForm(DIMENSIONS, is_normalized=True))


def load_encoder(
    folder: Path, path: NumericPath = NumericPath.FAST, *, is_reranker: bool = False, max_tokens: int = 1000
) -> LoadedEncoder:
    """Load a checkpoint as the worker does."""
    checkpoint = open_checkpoint(folder)
    if is_reranker:
        loaded = load(checkpoint, path, lambda _: None)
        return LoadedEncoder(loaded, max_tokens, reranker=Reranker(loaded.tokenizer))
    embedder = read_embedder(checkpoint, folder)
    loaded = load(for_vectors(checkpoint, embedder), path, lambda _: None)
    return LoadedEncoder(loaded, max_tokens, embedder=embedder)


def asking(
    key: str, *inputs: Sequence[int], wish: VectorWish | None = LAST, priority: int = 0, deadline: float | None = None
) -> EncodeRequest:
    """Return a request for inputs in tokens."""
    ids = tuple(array("I", each) for each in inputs)
    return EncodeRequest(key, ids, wish, priority, deadline, key)


class Driven(Ticked[EncodeRequest, EmbeddingWorkload]):
    """Ticks a workload and keeps what it tells.

    Args:
        loaded: the model.
        settings: of the workload.
    """

    def __init__(self, loaded: LoadedEncoder, settings: TextSettings | None = None) -> None:
        super().__init__(lambda clock: EmbeddingWorkload(lambda _: loaded, settings or TextSettings(), clock=clock))
        self._room = dict(self.workload._waiting._room._left)

    def ask(self, *requests: EncodeRequest) -> None:
        for request in requests:
            self.admit(request)

    def encode(self, *requests: EncodeRequest) -> list[list[bytes]]:
        """Run requests together to their ends, and return the values of each one's inputs."""
        self.ask(*requests)
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
