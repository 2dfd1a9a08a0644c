"""Vectors and scores are transformers' own, which are stored, within what sums in another order make."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from models.checkpoint.pooling import PoolingMode
from models.embedding.framing import Cut
from models.embedding.reranker import score_of
from models.embedding.vectors import VectorForm
from models.step import NumericPath
from tests.models.embedding.table import DOCUMENTS, INSTRUCTION, QUERIES, QUERY, TEXTS
from tests.support.tiny_embedders import DIMENSIONS, write_embedder, write_reranker
from tests.worker.embedding.driving import Driven, asking, load_encoder
from worker.embedding.inputs import InputMaker
from worker.embedding.reading import EmbedAsk, RerankAsk
from worker.embedding.request import VectorWish
from worker.envelope import Envelope

STORED = np.load(Path(__file__).parent / "transformers.npz")
ENVELOPE = Envelope("m", "r", 0)
MIN_COSINE = 0.9999
MAX_DIFFERENCE = 5e-5
NORMALIZED = VectorForm(DIMENSIONS, is_normalized=True)
POOLED = {"last": PoolingMode.LAST, "mean": PoolingMode.MEAN, "first": PoolingMode.FIRST}


@pytest.mark.parametrize("path", NumericPath)
def test_vectors_are_those_of_transformers(tmp_path: Path, path: NumericPath) -> None:
    loaded = load_encoder(write_embedder(tmp_path / "tiny"), path)
    wish = VectorWish(PoolingMode.LAST, NORMALIZED)
    ask = EmbedAsk(ENVELOPE, (*TEXTS, *QUERIES), "", Cut.NONE, wish)
    inputs = asyncio.run(InputMaker(loaded).embedded(ask, None))
    assert [list(each.ids) for each in inputs] == [list(STORED[f"ids {index}"]) for index in range(len(inputs))]

    driven = Driven(loaded)
    ids = [each.ids for each in inputs]
    driven.encode(*(asking(name, *ids, wish=VectorWish(mode, NORMALIZED)) for name, mode in POOLED.items()))
    for name in POOLED:
        vectors = np.concatenate(driven.vectors(name))
        assert (vectors * STORED[name]).sum(axis=1).min() >= MIN_COSINE
        assert np.abs(vectors - STORED[name]).max() < MAX_DIFFERENCE


@pytest.mark.parametrize("path", NumericPath)
def test_vectors_of_single_tokens_are_those_of_transformers(tmp_path: Path, path: NumericPath) -> None:
    driven = Driven(load_encoder(write_embedder(tmp_path / "tiny"), path))
    wish = VectorWish(None, VectorForm(DIMENSIONS, is_normalized=False))
    driven.encode(asking("r", STORED["ids 0"].tolist(), wish=wish))
    assert np.abs(driven.vectors("r")[0] - STORED["tokens"]).max() < MAX_DIFFERENCE


@pytest.mark.parametrize("path", NumericPath)
@pytest.mark.parametrize(("stored", "instruction"), [("scores", ""), ("scores instructed", INSTRUCTION)])
def test_scores_are_those_of_transformers(tmp_path: Path, path: NumericPath, stored: str, instruction: str) -> None:
    loaded = load_encoder(write_reranker(tmp_path / "tiny"), path, is_reranker=True)
    assert loaded.reranker is not None
    ask = RerankAsk(ENVELOPE, QUERY, DOCUMENTS, 0, Cut.NONE, instruction)
    inputs = asyncio.run(InputMaker(loaded).reranked(ask, loaded.reranker, None))
    driven = Driven(loaded)
    driven.encode(asking("r", *(each.ids for each in inputs), wish=None))
    scores = [score_of(each.yes, each.no) for each in driven.scores("r")]
    assert np.abs(np.array(scores) - STORED[stored]).max() < 1e-5
