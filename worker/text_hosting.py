"""Hosts a model that writes text: the template's process, what leads outputs, its adapters, and their services."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from models.registry import LoadedModel
from worker.adapters.making import desired_adapters, make_adapters
from worker.loading import loaded_message, make_workload, served_model
from worker.services.adapters import SERVICE as ADAPTERS_SERVICE
from worker.services.adapters import AdapterService
from worker.services.generation import SERVICE, GenerationService
from worker.templates import Template, TemplateRenderer

if TYPE_CHECKING:
    import grpc
    from pomona.v1 import model_pb2

    from worker.adapters.adapters import Adapters
    from worker.child import Child
    from worker.served import ServedModel
    from worker.services.desk import Desk
    from worker.services.edge import Edge
    from worker.settings import WorkerSettings


class TextHosting:
    """See `Hosting`.

    Args:
        settings: of the worker.
        child: where chat templates are to run, already started; None: to be started when one is there.
    """

    services = frozenset({SERVICE, ADAPTERS_SERVICE})
    tasks = "generate"

    def __init__(self, settings: WorkerSettings, child: Child | None) -> None:
        self._settings = settings
        self._child = child
        self._loop = asyncio.get_running_loop()
        self._template: TemplateRenderer | None = None
        self._served: ServedModel | None = None
        self._adapters: Adapters | None = None
        self._is_closed = False
        self.workload = make_workload(settings, self._hand_over_template)

    def handlers(
        self, edge: Edge, desk: Desk[Any, Any], check_active: Callable[[], None]
    ) -> Sequence[grpc.GenericRpcHandler]:
        """Return the GenerationService and the AdapterService."""

        def served() -> ServedModel:
            check_active()
            return cast("ServedModel", self._served)  # there is one as soon as the check passes

        self._adapters = adapters = make_adapters(self._settings, desk.engine.do)
        generation = GenerationService(desk, served, self._settings.max_response_bytes)
        return [
            generation.handlers(edge),
            AdapterService(self._settings.model, adapters, check_active).handlers(edge),
        ]

    async def begin(self, loaded: object) -> model_pb2.Model:
        """Take the loaded model."""
        model, context_tokens = cast("LoadedModel", loaded), self.workload.max_context_tokens
        if self._adapters is not None:
            await self._adapters.begin(model.adapters, desired_adapters(self._settings))
        self._served = served_model(model, context_tokens, self._settings, self._template, self._adapters)
        message = loaded_message(model, context_tokens, self._settings)
        await self._end_child()
        return message

    async def close(self) -> None:
        """End the children."""
        self._is_closed = True
        if self._adapters is not None:
            await self._adapters.close()
        if self._template is not None:
            await self._template.stop()
        await self._end_child()
        if self._served is not None:
            await self._served.steerer.close()

    def _hand_over_template(self, template: Template) -> None:
        """Have the event loop start the child; called on the engine's thread."""
        self._loop.call_soon_threadsafe(self._start_template, template)

    def _start_template(self, template: Template) -> None:
        """Start the child that renders chats while the weights are still read."""
        if not self._is_closed:
            timeout_s = self._settings.template_timeout_s
            self._template = TemplateRenderer(template, timeout_s=timeout_s, child=self._take_child())
            self._template.start()

    def _take_child(self) -> Child | None:
        child, self._child = self._child, None
        return child

    async def _end_child(self) -> None:
        if (child := self._take_child()) is not None:
            await child.end()
