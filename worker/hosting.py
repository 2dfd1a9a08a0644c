"""A kind of model as the worker's server hosts it: what runs on the engine, and what answers callers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import grpc
from pomona.v1 import model_pb2

from worker.job import Workload
from worker.services.desk import Desk
from worker.services.edge import Edge


class Hosting(Protocol):
    """What is special to models of one kind; made and used on the event loop, before there is a model."""

    @property
    def workload(self) -> Workload[Any, Any]:
        """What the engine runs; it loads the model too."""
        ...

    @property
    def services(self) -> Collection[str]:
        """Full names of the services that `handlers` returns."""
        ...

    @property
    def tasks(self) -> str:
        """What the model does, in words, for callers who want something else."""
        ...

    def handlers(
        self, edge: Edge, desk: Desk[Any, Any], check_active: Callable[[], None]
    ) -> Sequence[grpc.GenericRpcHandler]:
        """Return the services that answer callers.

        Args:
            edge: makes their handlers.
            desk: where their requests are handed in.
            check_active: raises what a caller gets while there is no model, `ModelLoading` or `ModelUnloading`.
        """
        ...

    async def begin(self, loaded: object) -> model_pb2.Model:
        """Make ready to answer, and return what is said of the model.

        Args:
            loaded: what the workload's `load` returned.

        Raises:
            Exception: as a load that failed.
        """
        ...

    async def close(self) -> None:
        """End what was started beside the engine; called once, also where nothing was loaded."""
        ...
