"""Calls to the EmbeddingService of a worker, as the gateway makes them."""

from typing import Any

import grpc.aio
import numpy as np
from numpy.typing import NDArray
from pomona.v1 import common_pb2
from pomona.v1 import embedding_pb2 as pb

from tests.support.worker_client import RPC_TIMEOUT_S, Refusal, WorkerClient, refusal_of, stamps
from tests.support.worker_process import MODEL

CONTEXT_TOKENS = 200
RANKING_TOKENS = 1000  # the frame of a question is long where every byte is a token
MAX_RESPONSE_BYTES = 20_000
ANSWERS = {pb.EmbedRequest: ("Embed", pb.EmbedResponse), pb.RerankRequest: ("Rerank", pb.RerankResponse)}
DTYPES = {pb.VECTOR_TYPE_FLOAT32_LE: "<f4", pb.VECTOR_TYPE_FLOAT16_LE: "<f2"}


def texts(*given: str) -> list[pb.EmbedInput]:
    return [pb.EmbedInput(text=text) for text in given]


def tokens(*ids: int) -> pb.EmbedInput:
    return pb.EmbedInput(token_ids=common_pb2.TokenIds(ids=ids))


def embed(*inputs: str | pb.EmbedInput, request_id: str = "r1", priority: int = 0, **options: Any) -> pb.EmbedRequest:
    """Return a request for texts or inputs, with these options."""
    made = [pb.EmbedInput(text=each) if isinstance(each, str) else each for each in inputs]
    told = pb.EmbedOptions(**options)
    return pb.EmbedRequest(model=MODEL, request_id=request_id, priority=priority, inputs=made, options=told)


def rerank(query: str, *documents: str, **fields: Any) -> pb.RerankRequest:
    return pb.RerankRequest(model=MODEL, request_id="r1", query=query, documents=documents, **fields)


def call(client: WorkerClient, request: Any, timeout: float | None = RPC_TIMEOUT_S) -> Any:
    """Send a request, stamped as the gateway would."""
    method, answer = ANSWERS[type(request)]
    path = f"/pomona.v1.EmbeddingService/{method}"
    send: Any = client.channel.unary_unary(path, request_serializer=None, response_deserializer=answer.FromString)
    return send(request.SerializeToString(), metadata=client.worker.metadata(stamps(request)), timeout=timeout)


async def refused(client: WorkerClient, request: Any, timeout: float | None = RPC_TIMEOUT_S) -> Refusal:
    """Send a request that must fail, and return how."""
    try:
        answer = await call(client, request, timeout)
    except grpc.aio.AioRpcError as error:
        return refusal_of(error)
    raise AssertionError(f"not refused: {answer}")


def vectors(response: pb.EmbedResponse) -> list[NDArray[np.float32]]:
    """Return the vectors of every input, float32 [n, dimensions]."""
    dtype = DTYPES[response.vector_type]
    return [
        np.frombuffer(each.values, dtype=dtype).astype(np.float32).reshape(each.vector_count, response.dimensions)
        for each in response.embeddings
    ]
