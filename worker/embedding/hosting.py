"""Hosts a text model that makes vectors, or one that ranks: the EmbeddingService."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from pomona.v1 import common_pb2

from worker.embedding.bounds import max_inputs
from worker.embedding.inputs import InputMaker
from worker.embedding.loaded import LoadedEncoder
from worker.embedding.loading import loaded_encoder_message, make_embedding_workload
from worker.embedding.served import ServedEncoder
from worker.services.embedding import SERVICE, EmbeddingService

if TYPE_CHECKING:
    import grpc
    from pomona.v1 import model_pb2

    from worker.child import Child
    from worker.services.desk import Desk
    from worker.services.edge import Edge
    from worker.settings import WorkerSettings


class EmbeddingHosting:
    """See `Hosting`.

    Args:
        settings: of the worker.
        child: that was started for chat templates, which there are none of; ended once the model is loaded.
        is_reranker: whether the model ranks; otherwise it makes vectors.
    """

    services = frozenset({SERVICE})

    def __init__(self, settings: WorkerSettings, child: Child | None, *, is_reranker: bool) -> None:
        self._settings = settings
        self._child = child
        self._served: ServedEncoder | None = None
        self.tasks = "rerank" if is_reranker else "embed"
        self.workload = make_embedding_workload(settings, is_reranker=is_reranker)

    def handlers(
        self, edge: Edge, desk: Desk[Any, Any], check_active: Callable[[], None]
    ) -> Sequence[grpc.GenericRpcHandler]:
        """Return the EmbeddingService."""

        def served() -> ServedEncoder:
            check_active()
            return cast("ServedEncoder", self._served)  # there is one as soon as the check passes

        return [EmbeddingService(desk, served, self.tasks).handlers(edge)]

    async def begin(self, loaded: object) -> model_pb2.Model:
        """Take the loaded model."""
        model, settings = cast("LoadedEncoder", loaded), self._settings
        resolved = common_pb2.ResolvedModel(
            model=settings.model, revision=model.revision, worker_instance_id=settings.instance_id
        )
        bytes_limit = settings.max_response_bytes
        self._served = ServedEncoder(model, InputMaker(model), resolved, max_inputs(model, bytes_limit), bytes_limit)
        message = loaded_encoder_message(model, settings)
        await self._end_child()
        return message

    async def close(self) -> None:
        """End what was started."""
        if self._served is not None:
            self._served.inputs.close()
        await self._end_child()

    async def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await child.end()
