"""ModelService: the catalogue, the states of models, and loading and unloading."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from pomona.v1 import model_pb2

from gateway.admission import Admission
from gateway.catalogue import Catalogue, CatalogueModel, is_name
from gateway.desired_adapters import at_once
from gateway.errors import LoadError, ModelNotFound, exceeds_memory
from gateway.estimate import Estimator, least_bytes
from gateway.experts import MAX_BUDGET_BYTES, MIN_BUDGET_BYTES, ExpertsWord, check_budget, experts_word
from gateway.kv_scheme import checked_kv_scheme
from gateway.load_options import following, in_effect
from gateway.model_status import Keeping, LoadOptions, ModelState, ModelStatus, WorkerPool
from gateway.request_errors import InvalidField, MalformedRequest, UnsupportedOption, Violation
from gateway.services.stock import Stock
from gateway.services.strict import check_range, refuse_set
from gateway.services.views import seconds_of, view_of
from gateway.sight import all_seen, is_seen, names_seen, seen

DEFAULT_PAGE = 100
MAX_PAGE = 1000
MAX_CONTEXT_TOKENS = 16_777_216
MAX_BATCH_ROWS = 256
MAX_GRACE_S = 86_400
NOT_BUILT_OPTIONS = ("draft_model",)
MAX_IDLE_S = 31_536_000
LOADED = frozenset({ModelState.ACTIVE, ModelState.DEGRADED, ModelState.DRAINING})


@dataclass(frozen=True, slots=True)
class ModelService:
    """The methods of `pomona.v1.ModelService` that are built, each over a request alone.

    Attributes:
        catalogue: which models there are.
        workers: who loads them.
        admission: says whether the server still takes work.
        unload_grace_s: what UnloadModel grants running requests where the caller does not say.
        estimator: says what models take.
        stock: changes which models there are.
        settle: waits until what was chosen outlives this server, as far as it can.
    """

    catalogue: Catalogue
    workers: WorkerPool
    admission: Admission
    unload_grace_s: float
    estimator: Estimator
    stock: Stock
    settle: Callable[[], Awaitable[None]] = at_once

    async def ListModels(self, request: model_pb2.ListModelsRequest) -> model_pb2.ListModelsResponse:  # noqa: N802
        """Return a page of the models, by name."""
        check_range("page_size", request.page_size, 0, MAX_PAGE)
        if request.page_token and not is_name(request.page_token):
            raise InvalidField((Violation("page_token", "is not one that this server gave"),))
        size = request.page_size or DEFAULT_PAGE
        rest = [
            model
            for model in all_seen(self.catalogue)
            if model.name > request.page_token and (not request.loaded_only or self._state(model).state in LOADED)
        ]
        token = rest[size - 1].name if len(rest) > size else ""
        return model_pb2.ListModelsResponse(models=await self._views(rest[:size]), next_page_token=token)

    async def GetModel(self, request: model_pb2.GetModelRequest) -> model_pb2.GetModelResponse:  # noqa: N802
        """Return one model."""
        return model_pb2.GetModelResponse(model=await self._view(self._resolve(request.model)))

    async def WatchModels(  # noqa: N802
        self, request: model_pb2.WatchModelsRequest
    ) -> AsyncIterator[model_pb2.WatchModelsResponse]:
        """Yield every model as it is, the end of that snapshot, then each change."""
        named = {self._resolve(name).name for name in request.models}
        changes = self.workers.watch()
        number = 0
        for model in all_seen(self.catalogue):
            if not named or model.name in named:
                yield model_pb2.WatchModelsResponse(event_number=number, updated=await self._view(model))
                number += 1
        yield model_pb2.WatchModelsResponse(event_number=number, snapshot_complete=model_pb2.SnapshotComplete())
        async for status in changes:
            if (status.model in named) if named else is_seen(self.catalogue, status.model):
                number += 1
                yield await self._change(number, status)

    async def _change(self, number: int, status: ModelStatus) -> model_pb2.WatchModelsResponse:
        """Return the event that tells of a change: the model as it is now, or that it is gone."""
        try:
            model = self.catalogue.resolve(status.model)
        except ModelNotFound:
            return model_pb2.WatchModelsResponse(event_number=number, removed_model=status.model)
        view = await view_of(model, status, self.catalogue)
        return model_pb2.WatchModelsResponse(event_number=number, updated=view)

    async def EstimateModel(  # noqa: N802
        self, request: model_pb2.EstimateModelRequest
    ) -> model_pb2.EstimateModelResponse:
        """Return what loading a model would take; it loads nothing."""
        model = self._resolve(request.model)
        options = self._options(request.options, model)
        await self._check_options(model, options)
        response = await self.estimator.estimate(model, options)
        response.would_evict[:] = names_seen(self.catalogue, response.would_evict)
        return response

    async def LoadModel(self, request: model_pb2.LoadModelRequest) -> model_pb2.LoadModelResponse:  # noqa: N802
        """Load a model, or join its load; a caller that goes away does not end it."""
        model = self._resolve(request.model)
        options = self._options(request.options, model) if request.HasField("options") else None
        keeping = _keeping(request)
        await self._check_options(model, options)
        self.admission.check_open()
        if options is not None:
            await self._check_fit(model, options)
        status = await self.workers.load(
            model.name,
            options,
            wait=not request.return_immediately,
            keeping=keeping,
            allow_eviction=request.allow_eviction if request.HasField("allow_eviction") else True,
        )
        await self.settle()
        return model_pb2.LoadModelResponse(model=await view_of(model, status, self.catalogue))

    async def UnloadModel(self, request: model_pb2.UnloadModelRequest) -> model_pb2.UnloadModelResponse:  # noqa: N802
        """Stop a model's worker; returns once its process is gone."""
        model = self._resolve(request.model)
        grace_s = seconds_of(request.grace) if request.HasField("grace") else self.unload_grace_s
        check_range("grace", grace_s, 0, MAX_GRACE_S)
        freed_bytes = await self.workers.unload(model.name, grace_s)
        await self.settle()
        return model_pb2.UnloadModelResponse(model=await self._view(model), freed_bytes=freed_bytes)

    async def PullModel(  # noqa: N802
        self, request: model_pb2.PullModelRequest
    ) -> AsyncIterator[model_pb2.PullModelResponse]:
        """Yield how far a download is; it stops when the last caller who wants it goes."""
        async with aclosing(self.stock.pull(request)) as responses:
            async for response in responses:
                yield response

    async def DeleteModel(self, request: model_pb2.DeleteModelRequest) -> model_pb2.DeleteModelResponse:  # noqa: N802
        """Remove a downloaded model that no worker has."""
        return await self.stock.delete(self._resolve(request.model))

    async def RefreshCatalogue(  # noqa: N802
        self,
        request: model_pb2.RefreshCatalogueRequest,  # noqa: ARG002 - it has no fields
    ) -> model_pb2.RefreshCatalogueResponse:
        """Read settings and cache again, and return what changed."""
        return await self.stock.refresh()

    async def _check_options(self, model: CatalogueModel, options: LoadOptions | None) -> None:
        """Refuse a context that the checkpoint does not have, rather than cut it down, and experts of a dense model."""
        if options is None or (options.context_tokens, options.experts, options.expert_budget) == (None, None, None):
            return
        description = await self.catalogue.describe(model)
        most = description.facts.limits.max_context_tokens
        if most and (options.context_tokens or 0) > most:
            problem = f"is over the {most} tokens of the checkpoint"
            raise InvalidField((Violation("options.context_tokens", problem),))
        if description.failure is None and not description.facts.HasField("experts"):
            _refuse_experts(options)

    async def _check_fit(self, model: CatalogueModel, options: LoadOptions) -> None:
        """Refuse what cannot be loaded so before a worker has to go for it.

        Raises:
            GatewayError: it cannot.
        """
        has_experts = (await self.catalogue.describe(model)).facts.HasField("experts")
        if not has_experts and self._state(model).state not in LOADED:
            return  # the load finds out by itself
        try:
            estimate = (await self.estimator.estimate(model, options)).estimate
        except LoadError:
            if has_experts:
                raise
            return  # a checkpoint whose headers do not tell may load all the same
        if least_bytes(estimate) > estimate.budget_bytes > 0:
            raise exceeds_memory(model.name, least_bytes(estimate), estimate.budget_bytes)

    def _options(self, asked: model_pb2.LoadOptions, model: CatalogueModel) -> LoadOptions:
        """Return what is asked for, where it goes together with what holds."""
        options = _options(asked, model)
        if options.expert_budget is not None:
            held = in_effect(following(self._state(model).options, options, model), model)
            _check_budget(held.experts or model.experts)
        return options

    def _resolve(self, name: str) -> CatalogueModel:
        if not name:
            raise MalformedRequest("it names no model")
        if not is_name(name):
            raise InvalidField((Violation("model", "is not the name of a model"),))
        return seen(self.catalogue, name)

    def _state(self, model: CatalogueModel) -> ModelStatus:
        return self.workers.state(model.name)

    async def _view(self, model: CatalogueModel) -> model_pb2.Model:
        return await view_of(model, self._state(model), self.catalogue)

    async def _views(self, models: Iterable[CatalogueModel]) -> list[model_pb2.Model]:
        return list(await asyncio.gather(*(self._view(model) for model in models)))


def _keeping(request: model_pb2.LoadModelRequest) -> Keeping:
    """Return how long the model is to stay, as far as the request says."""
    pinned = request.pinned if request.HasField("pinned") else None
    if not request.HasField("idle_ttl"):
        return Keeping(pinned)
    ttl_s = seconds_of(request.idle_ttl)
    check_range("idle_ttl", ttl_s, 0, MAX_IDLE_S)
    return Keeping(pinned, ttl_s)


def _options(asked: model_pb2.LoadOptions, model: CatalogueModel) -> LoadOptions:
    refuse_set(asked, *NOT_BUILT_OPTIONS, prefix="options.")
    limits: dict[str, int] = {"context_tokens": MAX_CONTEXT_TOKENS, "max_batch_rows": MAX_BATCH_ROWS}
    given: dict[str, Any] = {}
    for name, most in limits.items():
        if asked.HasField(name):  # pyright: ignore[reportArgumentType] - a literal for its stub
            given[name] = getattr(asked, name)
            check_range(f"options.{name}", given[name], 1, most)
    experts, budget = _experts(asked)
    return LoadOptions(**given, kv_scheme=_kv_scheme(asked.kv_scheme, model), experts=experts, expert_budget=budget)


def _experts(asked: model_pb2.LoadOptions) -> tuple[ExpertsWord | None, int | None]:
    """Return where experts are to lie and the budget of their slabs, each None where it was not said."""
    try:
        word = experts_word(asked.experts_mode)
    except ValueError as error:
        raise InvalidField((Violation("options.experts_mode", str(error)),)) from None
    if not asked.HasField("expert_budget_bytes"):
        return word, None
    check_range("options.expert_budget_bytes", asked.expert_budget_bytes, MIN_BUDGET_BYTES, MAX_BUDGET_BYTES)
    return word, asked.expert_budget_bytes


def _check_budget(word: ExpertsWord) -> None:
    try:
        check_budget(word)
    except ValueError as error:
        raise InvalidField((Violation("options.expert_budget_bytes", str(error)),)) from None


def _refuse_experts(options: LoadOptions) -> None:
    """Refuse what only a model with routed experts has; `auto` is right for any."""
    mode = None if options.experts == "auto" else options.experts
    asked = {"options.experts_mode": mode, "options.expert_budget_bytes": options.expert_budget}
    problem = "is refused: this model has no routed experts"
    violations = tuple(Violation(name, problem) for name, value in asked.items() if value is not None)
    if violations:
        raise UnsupportedOption(violations)


def _kv_scheme(text: str, model: CatalogueModel) -> str | None:
    """Return the scheme that was asked for, spelled out; None where none was."""
    if not text:
        return None
    try:
        return checked_kv_scheme(text, model.checkpoint)
    except ValueError as error:
        raise InvalidField((Violation("options.kv_scheme", str(error)),)) from None
