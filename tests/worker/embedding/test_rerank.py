"""What a worker makes of requests for a ranking, over its real socket."""

import grpc
import numpy as np
import pytest
from pomona.v1 import embedding_pb2 as pb
from pomona.v1 import model_pb2

from tests.models.embedding.table import DOCUMENTS, INSTRUCTION, QUERY
from tests.models.embedding.test_transformers import STORED
from tests.support.worker_client import WorkerClient
from tests.support.worker_process import MODEL

from .calls import call, embed, refused, rerank


def scores(response: pb.RerankResponse) -> dict[int, float]:
    return {each.document_index: each.score for each in response.rankings}


async def test_documents_come_best_first_with_the_models_scores(ranking: WorkerClient) -> None:
    answer = await call(ranking, rerank(QUERY, *DOCUMENTS))
    told = [each.score for each in answer.rankings]
    assert told == sorted(told, reverse=True)
    assert [scores(answer)[index] for index in range(3)] == pytest.approx(STORED["scores"].tolist(), abs=1e-5)
    assert answer.resolved_model.model == MODEL
    assert answer.usage.prompt_tokens > 1000
    assert answer.timing.total_us > 0


async def test_an_instruction_says_what_makes_a_document_fit(ranking: WorkerClient) -> None:
    answer = await call(ranking, rerank(QUERY, *DOCUMENTS, instruction=INSTRUCTION))
    found = np.array([scores(answer)[index] for index in range(3)])
    assert np.abs(found - STORED["scores instructed"]).max() < 1e-5


async def test_only_as_many_are_told_as_are_wanted(ranking: WorkerClient) -> None:
    whole = await call(ranking, rerank(QUERY, *DOCUMENTS))
    for top_n in (1, 2, 3, 9):
        answer = await call(ranking, rerank(QUERY, *DOCUMENTS, top_n=top_n))
        assert list(answer.rankings) == list(whole.rankings)[:top_n]


async def test_equal_documents_keep_their_order_and_get_the_score_that_one_gets_alone(ranking: WorkerClient) -> None:
    answer = await call(ranking, rerank(QUERY, *["the cat"] * 20))
    alone = await call(ranking, rerank(QUERY, "the cat"))
    assert [each.document_index for each in answer.rankings] == list(range(20))
    assert {each.score for each in answer.rankings} == {alone.rankings[0].score}


async def test_long_documents_are_cut_where_the_request_says(ranking: WorkerClient) -> None:
    long = "".join(chr(97 + index % 26) for index in range(2000))
    for cut, kept in ((pb.TRUNCATION_RIGHT, long[:100]), (pb.TRUNCATION_LEFT, long[-100:])):
        answer = await call(ranking, rerank("q", long, kept, truncation=cut))
        whole = (await call(ranking, rerank("q", kept))).rankings[0].score
        assert scores(answer)[1] == whole != scores(answer)[0]
    refusal = await refused(ranking, rerank("q", "x", long))
    assert (refusal.reason, refusal.field) == ("CONTEXT_TOO_LONG", "documents[1]")
    assert refusal.metadata["max_context_tokens"] == "1000"


async def test_model_says_that_it_ranks(ranking: WorkerClient) -> None:
    model = (await ranking.is_active()).model
    assert list(model.tasks) == [model_pb2.Model.TASK_RERANK]
    assert not model.HasField("embedding")
    assert model.limits.max_embed_inputs > 500


BAD: dict[str, tuple[pb.RerankRequest, str, str]] = {
    "no query": (rerank("", "d"), "INVALID_FIELD", "query"),
    "no documents": (rerank("q"), "INVALID_FIELD", "documents"),
    "too many documents": (rerank("q", *["d"] * 3000), "INVALID_FIELD", "documents"),
    "a long query": (rerank("q" * 2000, "d", truncation=pb.TRUNCATION_RIGHT), "CONTEXT_TOO_LONG", "query"),
    "a long instruction": (rerank("q", "d", instruction="i" * 20_000), "INVALID_FIELD", "instruction"),
    "an adapter": (rerank("q", "d", adapters=[{}]), "UNSUPPORTED_OPTION", "adapters"),
}


@pytest.mark.parametrize("name", BAD)
async def test_what_is_wrong_is_told_by_its_field(ranking: WorkerClient, name: str) -> None:
    message, reason, field = BAD[name]
    refusal = await refused(ranking, message)
    assert (refusal.code, refusal.reason, refusal.field) == (grpc.StatusCode.INVALID_ARGUMENT, reason, field)


async def test_vectors_are_refused_by_what_the_model_does(ranking: WorkerClient) -> None:
    refusal = await refused(ranking, embed("x"))
    assert (refusal.reason, refusal.metadata["tasks"]) == ("TASK_NOT_SUPPORTED", "rerank")
