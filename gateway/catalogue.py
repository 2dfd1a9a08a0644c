"""Which models exist: their names, aliases and folders, and what their checkpoints say of themselves."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pomona.v1 import model_pb2

from gateway.desired_adapters import DesiredAdapter
from gateway.errors import CheckpointRejected, GatewayError, LoadError, ModelLoadFailed, ModelNotFound
from gateway.experts import ExpertsWord
from gateway.model_status import LoadOptions

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?", re.ASCII)
MAX_NAME_CHARS = 200
# What workers write beside a checkpoint that tells nothing of it: how experts were used, and a pack not yet whole.
OWN_FILES = ("experts.usage", "experts.pack.partial")


def is_name(text: str) -> bool:
    """Say whether `text` may name a model: `name` or `organisation/name`, at most 200 characters."""
    return len(text) <= MAX_NAME_CHARS and NAME.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class CatalogueModel:
    """One model that clients may ask for.

    Attributes:
        name: canonical name.
        checkpoint: absolute path of its folder or GGUF file.
        aliases: other names for it.
        context_tokens: the longest prompt and answer together, in tokens; None is the checkpoint's own limit.
        max_batch_rows: how many requests run side by side.
        path: which numeric path its worker takes.
        kv_scheme: how keys and values are kept.
        kv_bytes: of keys and values of all its requests together; None is what its worker finds right.
        experts: where routed experts lie; `auto` is what fits.
        expert_budget: of their slabs, in bytes; None is what the rest leaves.
        expert_trace: the file that routing is written to; None: it is not written down.
        reasoning_marks: what opens and closes its reasoning, or `none`; None is what its chat template says.
        tool_dialect: how it writes tool calls; None is what its chat template says.
        task: what a text model is for; None is what its files say.
        adapters_folder: where its adapters are found by name; None: nowhere.
        adapters_bytes: of those that are mounted together.
        lazy_adapters: whether a request mounts an adapter that it names.
        adapters: that its worker begins with.
        pinned: whether it is never unloaded to make room for others, nor because it is idle.
        preload: whether it is loaded as soon as the server runs.
        idle_ttl_s: how long nothing may use it before it is unloaded, in seconds; 0: not at all; None is what
            holds for all models.
        defaults: of requests that leave something open, by the names of their fields.
        max_requests: of it in flight; None is what holds for all models.
        max_waiting: of them that wait for a place; None is as many as there is room for.
    """

    name: str
    checkpoint: Path
    aliases: tuple[str, ...] = ()
    context_tokens: int | None = None
    max_batch_rows: int = 16
    path: Literal["fast", "reference"] = "fast"
    kv_scheme: str = "none"
    kv_bytes: int | None = None
    experts: ExpertsWord = "auto"
    expert_budget: int | None = None
    expert_trace: Path | None = None
    reasoning_marks: str | tuple[str, str] | None = None
    tool_dialect: str | None = None
    task: Literal["generate", "embed", "rerank"] | None = None
    adapters_folder: Path | None = None
    adapters_bytes: int = 256 << 20
    lazy_adapters: bool = False
    adapters: tuple[DesiredAdapter, ...] = ()
    pinned: bool = False
    preload: bool = False
    idle_ttl_s: float | None = None
    defaults: Mapping[str, float] = field(default_factory=dict[str, float], hash=False)
    max_requests: int | None = None
    max_waiting: int | None = None


@dataclass(frozen=True, slots=True)
class Description:
    """What a checkpoint's headers say, or why they could not be read.

    Attributes:
        facts: architecture, limits, capabilities and defaults; empty where reading failed.
        failure: why reading failed.
    """

    facts: model_pb2.Model = field(default_factory=model_pb2.Model)
    failure: GatewayError | None = None


Describe = Callable[[CatalogueModel], Awaitable[model_pb2.Model]]
"""Reads the headers of a model's checkpoint; raises LoadError where they are not readable."""

Stamp = tuple[tuple[str, int, int], ...]


class Catalogue:
    """The models that there are, looked up by name or alias, never by path.

    Descriptions are kept until a file of the checkpoint changes its time or size; why one could not be read, until the
    models are put in place anew, for whoever lets a file be read again changes neither. All models change at once, by
    `replace`; whoever holds one that is gone may still ask for its description.
    """

    def __init__(self, models: Iterable[CatalogueModel], describe: Describe) -> None:
        """Hold `models`; `describe` reads a checkpoint's headers.

        Raises:
            ValueError: two models share a name or alias, or a name is not one that a client could send.
        """
        self._describe = describe
        self._known: dict[str, tuple[Stamp, Description]] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self.models: tuple[CatalogueModel, ...] = ()
        self._by_name: dict[str, CatalogueModel] = {}
        self.replace(models)

    def replace(self, models: Iterable[CatalogueModel]) -> None:
        """Hold these models from now on; nothing changes where that fails.

        Raises:
            ValueError: two of them share a name or alias, or a name is not one that a client could send.
        """
        ordered = tuple(sorted(models, key=lambda model: model.name))
        by_name: dict[str, CatalogueModel] = {}
        for model in ordered:
            for name in (model.name, *model.aliases):
                _add(by_name, name, model)
        same = {model.name for model in ordered if self._by_name.get(model.name) == model}
        self._known = {name: known for name, known in self._known.items() if name in same and known[1].failure is None}
        self._locks = {model.name: self._locks.get(model.name) or asyncio.Lock() for model in ordered}
        self.models, self._by_name = ordered, by_name

    def resolve(self, name: str) -> CatalogueModel:
        """Return the model that `name` or an alias means.

        Raises:
            ModelNotFound: there is none; `gateway.sight` lists the names that the caller may know.
        """
        model = self._by_name.get(name)
        if model is None:
            raise ModelNotFound(name)
        return model

    async def describe(self, model: CatalogueModel) -> Description:
        """Return what the checkpoint of `model` says of itself; reads it once until it changes."""
        async with self._locks.get(model.name) or asyncio.Lock():
            stamp = await asyncio.to_thread(stamp_of, model.checkpoint)
            known = self._known.get(model.name)
            if known is not None and known[0] == stamp:
                return known[1]
            description = await self._read(model, stamp)
            is_lasting = not isinstance(description.failure, ModelLoadFailed)  # that one tells of this moment
            if is_lasting and self._by_name.get(model.name) == model:
                self._known[model.name] = (stamp, description)
            return description

    def configured(self, model: CatalogueModel) -> LoadOptions:
        """Return the options that hold for `model` where none is chosen.

        The context is None where it is the checkpoint's own and the checkpoint was not described yet.
        """
        known = self._known.get(model.name)
        most = known[1].facts.limits.max_context_tokens if known is not None else 0
        contexts = [tokens for tokens in (model.context_tokens, most) if tokens]
        context_tokens = min(contexts, default=None)
        return LoadOptions(context_tokens, model.max_batch_rows, model.kv_scheme, model.experts, model.expert_budget)

    async def _read(self, model: CatalogueModel, stamp: Stamp) -> Description:
        if not stamp:
            return Description(
                failure=CheckpointRejected(model.name, "it is not there.", {"file": model.checkpoint.name})
            )
        try:
            return Description(await self._describe(model))
        except LoadError as error:
            return Description(failure=error)


def _add(by_name: dict[str, CatalogueModel], name: str, model: CatalogueModel) -> None:
    if not is_name(name):
        msg = f"{name!r} is not a model name: letters, digits, '.', '_', '-', and one '/' at most"
        raise ValueError(msg)
    if name in by_name:
        msg = f"two models are named {name!r}"
        raise ValueError(msg)
    by_name[name] = model


def _is_of_checkpoint(file: Path) -> bool:
    """Say whether a file of the folder may tell of the checkpoint."""
    return not file.name.startswith(OWN_FILES)


def stamp_of(checkpoint: Path) -> Stamp:
    """Return name, change time (ns) and size (bytes) of the checkpoint's files; () where there are none."""
    try:
        files = sorted(filter(_is_of_checkpoint, checkpoint.iterdir())) if checkpoint.is_dir() else [checkpoint]
        return tuple((file.name, (stat := file.stat()).st_mtime_ns, stat.st_size) for file in files)
    except OSError:
        return ()
