"""What a worker makes of requests for vectors, over its real socket."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from pomona.v1 import common_pb2, generation_pb2, model_pb2, server_pb2, worker_pb2
from pomona.v1 import embedding_pb2 as pb

from models.checkpoint.tokenizer import read_tokenizer
from tests.models.embedding.table import TEXTS
from tests.models.embedding.test_transformers import STORED
from tests.support.tiny_embedders import DIMENSIONS, QUERY_PROMPT
from tests.support.tiny_models import END_TOKEN_ID
from tests.support.worker_client import WorkerClient, refusal_of, request
from tests.support.worker_process import MODEL

from .calls import CONTEXT_TOKENS, MAX_RESPONSE_BYTES, call, embed, refused, texts, tokens, vectors

SHORT = "the cat"
LONG = "".join(chr(97 + index % 26) for index in range(CONTEXT_TOKENS + 50))


async def test_vectors_are_the_models_with_all_that_is_told_of_them(client: WorkerClient) -> None:
    answer = await call(client, embed(*TEXTS))

    assert np.abs(np.concatenate(vectors(answer)) - STORED["last"][: len(TEXTS)]).max() < 5e-5
    assert [each.token_count for each in answer.embeddings] == [len(STORED[f"ids {n}"]) for n in range(len(TEXTS))]
    assert [(each.vector_count, each.truncated) for each in answer.embeddings] == [(1, False)] * len(TEXTS)
    assert (answer.dimensions, answer.vector_type) == (DIMENSIONS, pb.VECTOR_TYPE_FLOAT32_LE)
    assert answer.request_id == "r1"
    assert answer.resolved_model.model == MODEL
    assert answer.resolved_model.worker_instance_id == client.worker.settings["instance_id"]
    assert answer.usage.prompt_tokens == sum(each.token_count for each in answer.embeddings)
    assert answer.usage.completion_tokens == 0
    assert answer.timing.total_us >= answer.timing.prefill_us > 0


async def test_a_request_gets_what_each_of_its_inputs_gets_alone(client: WorkerClient) -> None:
    inputs = [f"{'text ' * (index % 7)}{index}" for index in range(64)]
    together = await call(client, embed(*inputs))
    alone = [await call(client, embed(text)) for text in inputs]
    assert [each.values for each in together.embeddings] == [each.embeddings[0].values for each in alone]


async def test_many_callers_at_once_get_what_they_get_alone(client: WorkerClient) -> None:
    batches = [[f"{caller} {'x' * index}" for index in range(5)] for caller in "abcd"]
    answers = await asyncio.gather(*(call(client, embed(*batch, request_id=batch[0])) for batch in batches))
    alone = [await call(client, embed(*batch)) for batch in batches]
    assert [answer.embeddings for answer in answers] == [answer.embeddings for answer in alone]


async def test_model_says_what_it_does_and_within_which_limits(client: WorkerClient) -> None:
    model = (await client.is_active()).model
    assert list(model.tasks) == [model_pb2.Model.TASK_EMBED]
    assert model.embedding == model_pb2.EmbeddingCapabilities(
        dimensions=DIMENSIONS, reduced_dimensions=[32], normalized=True, per_token=True
    )
    assert (model.limits.max_context_tokens, model.limits.max_response_bytes) == (CONTEXT_TOKENS, MAX_RESPONSE_BYTES)
    assert model.limits.max_embed_inputs == 65
    assert model.limits.max_output_tokens == 0
    assert not model.HasField("generation")
    most = await call(client, embed(*["x"] * model.limits.max_embed_inputs))
    assert len(most.SerializeToString()) <= MAX_RESPONSE_BYTES
    assert (await refused(client, embed(*["x"] * 66))).field == "inputs"


@pytest.mark.parametrize("dimensions", [32, 50, 64])
async def test_fewer_dimensions_are_the_first_ones_scaled_again(client: WorkerClient, dimensions: int) -> None:
    (whole,) = vectors(await call(client, embed(SHORT)))
    answer = await call(client, embed(SHORT, dimensions=dimensions))
    (raw,) = vectors(await call(client, embed(SHORT, dimensions=dimensions, normalize=False)))
    (cut,) = vectors(answer)
    assert answer.dimensions == cut.shape[1] == raw.shape[1] == dimensions
    expected = whole[:, :dimensions] / np.linalg.norm(whole[:, :dimensions])
    assert np.allclose(cut, expected, atol=1e-6)
    assert np.linalg.norm(cut) == pytest.approx(1, abs=1e-6)
    assert np.linalg.norm(raw) > 2


async def test_half_floats_are_the_same_vector(client: WorkerClient) -> None:
    (whole,) = vectors(await call(client, embed(SHORT)))
    answer = await call(client, embed(SHORT, vector_type=pb.VECTOR_TYPE_FLOAT16_LE))
    assert answer.vector_type == pb.VECTOR_TYPE_FLOAT16_LE
    assert len(answer.embeddings[0].values) == 2 * DIMENSIONS
    assert (vectors(answer)[0] == whole.astype(np.float16)).all()


async def test_every_token_may_keep_its_vector(client: WorkerClient) -> None:
    answer = await call(client, embed(SHORT, "a", pooling=pb.POOLING_PER_TOKEN))
    first, second = vectors(answer)
    assert (len(first), len(second)) == tuple(each.token_count for each in answer.embeddings) == (6, 2)
    (pooled,) = vectors(await call(client, embed(SHORT, normalize=False, pooling=pb.POOLING_MODEL_DEFAULT)))
    assert (first[-1] == pooled[0]).all()
    (scaled, _) = vectors(await call(client, embed(SHORT, "a", pooling=pb.POOLING_PER_TOKEN, normalize=True)))
    assert np.allclose(np.linalg.norm(scaled, axis=1), 1, atol=1e-6)


async def test_tokens_are_taken_as_they_are(client: WorkerClient) -> None:
    ids = read_tokenizer(Path(client.worker.settings["checkpoint"])).encode(SHORT, False)
    answer = await call(client, embed(SHORT, tokens(*ids, END_TOKEN_ID), tokens(*ids)))
    text, same, other = (each.values for each in answer.embeddings)
    assert text == same != other


async def test_tasks_and_instructions_put_the_models_prompt_before_a_text(client: WorkerClient) -> None:
    async def values(text: str, **options: Any) -> bytes:
        return (await call(client, embed(text, **options))).embeddings[0].values

    query = await values(SHORT, task_type=pb.TASK_TYPE_RETRIEVAL_QUERY)
    assert query == await values(QUERY_PROMPT + SHORT)
    assert await values(SHORT, task_type=pb.TASK_TYPE_RETRIEVAL_DOCUMENT) == await values(SHORT) != query
    told = await values(f"Instruct: Find cats\nQuery:{SHORT}")
    assert await values(SHORT, instruction="Find cats") == told
    assert await values(SHORT, instruction="Find cats", task_type=pb.TASK_TYPE_RETRIEVAL_QUERY) == told


async def test_long_inputs_are_cut_where_the_request_says(client: WorkerClient) -> None:
    async def answer(given: str | pb.EmbedInput, **options: Any) -> pb.Embedding:
        return (await call(client, embed(given, **options))).embeddings[0]

    room = CONTEXT_TOKENS - 1  # the end's token stays
    ids = read_tokenizer(Path(client.worker.settings["checkpoint"])).encode(LONG, False)
    for cut, kept in ((pb.TRUNCATION_RIGHT, ids[:room]), (pb.TRUNCATION_LEFT, ids[-room:])):
        expected = await answer(tokens(*kept, END_TOKEN_ID))
        for given in (LONG, tokens(*ids, END_TOKEN_ID)):
            got = await answer(given, truncation=cut)
            assert (got.values, got.truncated, got.token_count) == (expected.values, True, CONTEXT_TOKENS)
    prompt = read_tokenizer(Path(client.worker.settings["checkpoint"])).encode(QUERY_PROMPT, False)
    kept = tokens(*prompt, *ids[len(prompt) - room :], END_TOKEN_ID)
    got = await answer(LONG, truncation=pb.TRUNCATION_LEFT, task_type=pb.TASK_TYPE_RETRIEVAL_QUERY)
    assert got.values == (await answer(kept)).values


async def test_an_input_of_the_whole_context_fits(client: WorkerClient) -> None:
    answer = await call(client, embed("x" * (CONTEXT_TOKENS - 1)))
    assert (answer.embeddings[0].token_count, answer.embeddings[0].truncated) == (CONTEXT_TOKENS, False)


async def test_an_empty_text_is_the_end_alone(client: WorkerClient) -> None:
    answer = await call(client, embed("", tokens(END_TOKEN_ID)))
    assert answer.embeddings[0].token_count == 1
    assert answer.embeddings[0].values == answer.embeddings[1].values


BAD: dict[str, tuple[pb.EmbedRequest, str, str]] = {
    "no inputs": (embed(), "INVALID_FIELD", "inputs"),
    "an input of nothing": (embed("x", pb.EmbedInput()), "INVALID_FIELD", "inputs[1]"),
    "no tokens": (embed(tokens()), "INVALID_FIELD", "inputs[0].token_ids.ids"),
    "a token that there is not": (embed("x", tokens(1, 288)), "INVALID_FIELD", "inputs[1].token_ids.ids[1]"),
    "a long text": (embed("x", LONG), "CONTEXT_TOO_LONG", "inputs[1].text"),
    "many tokens": (embed(tokens(*[1] * 201)), "CONTEXT_TOO_LONG", "inputs[0].token_ids.ids"),
    "an error where it is long": (embed(LONG, truncation=pb.TRUNCATION_ERROR), "CONTEXT_TOO_LONG", "inputs[0].text"),
    "no dimensions": (embed("x", dimensions=0), "INVALID_FIELD", "options.dimensions"),
    "too few": (embed("x", dimensions=31), "INVALID_FIELD", "options.dimensions"),
    "too many": (embed("x", dimensions=65), "INVALID_FIELD", "options.dimensions"),
    "few of every token": (
        embed("x", dimensions=32, pooling=pb.POOLING_PER_TOKEN),
        "INVALID_FIELD",
        "options.dimensions",
    ),
    "a task without a prompt": (
        embed("x", task_type=pb.TASK_TYPE_CLUSTERING),
        "UNSUPPORTED_OPTION",
        "options.task_type",
    ),
    "an instruction for documents": (
        embed("x", task_type=pb.TASK_TYPE_RETRIEVAL_DOCUMENT, instruction="y"),
        "INVALID_FIELD",
        "options.instruction",
    ),
    "a long instruction": (embed("x", instruction="y" * 20_000), "INVALID_FIELD", "options.instruction"),
    "a prompt before tokens": (
        embed("x", tokens(1), task_type=pb.TASK_TYPE_RETRIEVAL_QUERY),
        "INVALID_FIELD",
        "options.task_type",
    ),
    "an instruction before tokens": (embed(tokens(1), instruction="y"), "INVALID_FIELD", "options.instruction"),
    "an adapter": (
        pb.EmbedRequest(model=MODEL, request_id="r1", adapters=[common_pb2.AdapterUse()]),
        "UNSUPPORTED_OPTION",
        "adapters",
    ),
    "no id": (embed("x", request_id=""), "INVALID_FIELD", "request_id"),
    "a priority": (embed("x", priority=200), "INVALID_FIELD", "priority"),
    "an unknown pooling": (
        pb.EmbedRequest(
            model=MODEL, request_id="r1", inputs=texts("x"), options=pb.EmbedOptions.FromString(b"\x30\x09")
        ),
        "UNSUPPORTED_OPTION",
        "options.pooling",
    ),
    "an answer that is too large": (
        embed(*["x" * 60] * 3, pooling=pb.POOLING_PER_TOKEN),
        "RESPONSE_TOO_LARGE",
        "inputs",
    ),
}


@pytest.mark.parametrize("name", BAD)
async def test_what_is_wrong_is_told_by_its_field(client: WorkerClient, name: str) -> None:
    message, reason, field = BAD[name]
    refusal = await refused(client, message)
    assert (refusal.code, refusal.reason, refusal.field) == (grpc.StatusCode.INVALID_ARGUMENT, reason, field)
    assert refusal.usage is None


async def test_other_tasks_are_refused_by_what_the_model_does(client: WorkerClient) -> None:
    for refusal in (
        await refused(client, pb.RerankRequest(model=MODEL, request_id="r1", query="q", documents=["d"])),
        await client.refused(request(generation_pb2.GenerateRequest)),
    ):
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "TASK_NOT_SUPPORTED")
        assert refusal.metadata == {"model": MODEL, "tasks": "embed"}


async def test_adapters_are_refused_by_what_the_model_does(client: WorkerClient) -> None:
    for method in ("ListAdapters", "LoadAdapter", "UnloadAdapter"):
        send: Any = client.channel.unary_unary(f"/pomona.v1.AdapterService/{method}")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await send(b"", metadata=client.worker.metadata())
        refusal = refusal_of(raised.value)
        assert (refusal.reason, refusal.metadata["tasks"]) == ("TASK_NOT_SUPPORTED", "embed")


async def test_requests_are_listed_and_ended_by_an_operator(client: WorkerClient) -> None:
    running = call(client, embed(*["x" * 190] * 60))
    asked = asyncio.ensure_future(running)
    async with asyncio.timeout(10):
        while not (listed := await requests(client)):
            pass
    assert (listed[0].request_id, listed[0].method) == ("r1", "Embed")
    ended = worker_pb2.CancelWorkerRequestRequest(request_id="r1")
    assert (await client.gateway.CancelWorkerRequest(ended, metadata=client.worker.metadata())).found
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asked
    refusal = refusal_of(caught.value)
    assert refusal.reason == "CANCELLED_BY_OPERATOR"
    await nothing_runs(client)


async def test_a_deadline_ends_a_request(client: WorkerClient) -> None:
    refusal = await refused(client, embed(*["x" * 190] * 60), timeout=0.02)
    assert refusal.code is grpc.StatusCode.DEADLINE_EXCEEDED
    await nothing_runs(client)


async def test_a_caller_that_leaves_ends_its_request(client: WorkerClient) -> None:
    running = call(client, embed(*["x" * 190] * 60))
    async with asyncio.timeout(10):
        while not await requests(client):
            pass
    running.cancel()
    await nothing_runs(client)
    assert (await call(client, embed(SHORT))).usage.prompt_tokens == 6


async def test_more_requests_than_run_and_wait_are_refused_at_once(client: WorkerClient) -> None:
    many = [call(client, embed(*["x" * 190] * 60, request_id=f"r{index}")) for index in range(8)]
    answers = await asyncio.gather(*many, return_exceptions=True)
    reasons = [refusal_of(each).reason for each in answers if isinstance(each, grpc.aio.AioRpcError)]
    assert reasons == ["QUEUE_FULL"] * len(reasons)
    assert len(reasons) >= 2


async def requests(client: WorkerClient) -> list[server_pb2.RequestInfo]:
    asked = worker_pb2.ListWorkerRequestsRequest()
    return list((await client.gateway.ListWorkerRequests(asked, metadata=client.worker.metadata())).requests)


async def nothing_runs(client: WorkerClient) -> None:
    async with asyncio.timeout(10):
        while await requests(client):
            pass
