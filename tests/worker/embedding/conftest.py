"""A worker that makes vectors and one that ranks, each a process for all tests here."""

from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_embedders import write_embedder, write_reranker
from tests.support.worker_client import WorkerClient, client_of
from tests.support.worker_process import WorkerProcess

from .calls import CONTEXT_TOKENS, MAX_RESPONSE_BYTES, RANKING_TOKENS


@contextmanager
def running(folder: Path, **settings: Any) -> Generator[WorkerProcess]:
    process = WorkerProcess(folder, max_response_bytes=MAX_RESPONSE_BYTES, max_queue_requests=2, **settings)
    yield process
    process.end()


@pytest.fixture(scope="package")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    with running(
        write_embedder(tmp_path_factory.mktemp("embedder") / "tiny"), context_tokens=CONTEXT_TOKENS, max_batch_rows=2
    ) as process:
        yield process


@pytest.fixture(scope="package")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    with running(
        write_reranker(tmp_path_factory.mktemp("reranker") / "tiny"), context_tokens=RANKING_TOKENS, task="rerank"
    ) as process:
        yield process


@pytest.fixture
async def client(embedder: WorkerProcess) -> AsyncIterator[WorkerClient]:
    async with client_of(embedder) as connected:
        await connected.is_active()
        yield connected


@pytest.fixture
async def ranking(reranker: WorkerProcess) -> AsyncIterator[WorkerClient]:
    async with client_of(reranker) as connected:
        await connected.is_active()
        yield connected
