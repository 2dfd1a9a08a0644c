"""The EmbeddingService: reads a request strictly, has its inputs computed, and sends the vectors or the ranking."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import grpc
from pomona.v1 import common_pb2
from pomona.v1 import embedding_pb2 as pb

from models.embedding.framing import Framed
from models.embedding.reranker import score_of
from worker.embedding.bounds import response_bytes
from worker.embedding.reading import EmbedAsk, read_embed, read_rerank
from worker.embedding.served import ServedEncoder
from worker.errors import ResponseTooLarge, TaskNotSupported
from worker.events import Embedded, Event, Scored
from worker.services import messages
from worker.services.bodies import BodyReader
from worker.services.edge import Call, Edge
from worker.services.encoded import Encoded, EncodeDesk

SERVICE = "pomona.v1.EmbeddingService"
_REMEDY = "send fewer inputs, or ask for fewer dimensions or half floats"
_TYPES = {"<f4": pb.VECTOR_TYPE_FLOAT32_LE, "<f2": pb.VECTOR_TYPE_FLOAT16_LE}


class EmbeddingService:
    """Answers Embed or Rerank, whichever the model can, and refuses the other.

    Args:
        desk: where requests are handed in.
        served: returns the loaded model; raises what a caller gets while there is none.
        tasks: what the model does, in words.
    """

    def __init__(self, desk: EncodeDesk, served: Callable[[], ServedEncoder], tasks: str) -> None:
        self._desk = desk
        self._served = served
        self._tasks = tasks
        self._bodies = BodyReader()

    def handlers(self, edge: Edge) -> grpc.GenericRpcHandler:
        """Return the methods of this service for a server."""
        methods = {"Embed": edge.unary(self.embed), "Rerank": edge.unary(self.rerank)}
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def embed(self, body: bytes, call: Call) -> pb.EmbedResponse:
        """Return the vectors of every input, in their order."""
        served = self._served()
        embedder = served.loaded.embedder
        if embedder is None:
            raise TaskNotSupported(self._tasks)
        bounds = served.max_inputs, served.loaded.max_tokens
        ask = await self._bodies.read(body, lambda read: read_embed(read, embedder, *bounds))
        call.check_envelope(ask.envelope, served.resolved.model)
        if ask.wish.mode is not None:
            _check_bytes(ask, len(ask.inputs), served)
        async with Encoded(self._desk, call, ask.envelope, "Embed") as encoded:
            inputs = await served.inputs.embedded(ask, call.time_remaining())
            if ask.wish.mode is None:
                _check_bytes(ask, sum(len(each.ids) for each in inputs), served)
            encoded.submit(inputs, ask.wish)
            response = _empty_response(ask, inputs, served)
            completed = await encoded.done(lambda event: _add_vectors(response, event))
        response.usage.prompt_tokens = completed.usage.prompt_tokens
        response.timing.CopyFrom(messages.timing(completed.timing))
        return response

    async def rerank(self, body: bytes, call: Call) -> pb.RerankResponse:
        """Return the documents, that which answers best first."""
        served = self._served()
        reranker = served.loaded.reranker
        if reranker is None:
            raise TaskNotSupported(self._tasks)
        ask = await self._bodies.read(body, lambda read: read_rerank(read, served.max_inputs))
        call.check_envelope(ask.envelope, served.resolved.model)
        scores: dict[int, float] = {}
        async with Encoded(self._desk, call, ask.envelope, "Rerank") as encoded:
            encoded.submit(await served.inputs.reranked(ask, reranker, call.time_remaining()))
            completed = await encoded.done(lambda event: _note_score(scores, event))
        best = sorted(scores, key=lambda index: (-scores[index], index))
        return pb.RerankResponse(
            resolved_model=served.resolved,
            request_id=ask.envelope.request_id,
            rankings=[pb.Ranking(document_index=index, score=scores[index]) for index in best[: ask.top_n or None]],
            usage=common_pb2.Usage(prompt_tokens=completed.usage.prompt_tokens),
            timing=messages.timing(completed.timing),
        )


def _check_bytes(ask: EmbedAsk, num_vectors: int, served: ServedEncoder) -> None:
    """Refuse before anything is computed what could not be answered."""
    if response_bytes(num_vectors, len(ask.inputs), ask.wish.form.vector_bytes) > served.max_response_bytes:
        raise ResponseTooLarge(served.max_response_bytes, "inputs", _REMEDY)


def _empty_response(ask: EmbedAsk, inputs: Sequence[Framed], served: ServedEncoder) -> pb.EmbedResponse:
    form = ask.wish.form
    return pb.EmbedResponse(
        resolved_model=served.resolved,
        request_id=ask.envelope.request_id,
        embeddings=[pb.Embedding(token_count=len(each.ids), truncated=each.is_cut) for each in inputs],
        dimensions=form.dimensions,
        vector_type=_TYPES[form.dtype],
    )


def _add_vectors(response: pb.EmbedResponse, event: Event) -> None:
    if isinstance(event, Embedded):
        embedding = response.embeddings[event.index]
        embedding.values, embedding.vector_count = event.values, event.num_vectors


def _note_score(scores: dict[int, float], event: Event) -> None:
    if isinstance(event, Scored):
        scores[event.index] = score_of(event.yes, event.no)
