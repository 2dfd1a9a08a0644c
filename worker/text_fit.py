"""What a text model would take of memory with the settings of a worker, and where its experts would lie; no MLX."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from models.checkpoint.checkpoint import TextCheckpoint
from models.checkpoint.errors import CheckpointError
from models.checkpoint.fit import Fit, Run, TextSizes
from models.checkpoint.kv_scheme import KVScheme, KVSchemeError
from models.checkpoint.sizes import Computation
from models.experts.options import ExpertsMode
from models.experts.pack import find_pack
from worker import machine
from worker.chunks import REFERENCE_CHUNK_TOKENS
from worker.embedding.task import TextTask
from worker.embedding.turns import NUM_SLOTS, SHORT_STEPS
from worker.errors import ModelLoadFailed
from worker.expert_choice import ExpertsChoice, ExpertsWish, choose_experts
from worker.prefix_settings import PrefixSettings
from worker.settings import ADAPTERS_BYTES
from worker.text_settings import TextSettings

# Of a worker, those that decide what it takes.
SETTINGS = (
    "path",
    "context_tokens",
    "max_batch_rows",
    "prefill_chunk_tokens",
    "kv_scheme",
    "kv_bytes",
    "prefix_cache_bytes",
    "experts",
    "expert_budget",
    "cpu_kernels",
    "task",
    "allow_mlx_lm",
    "adapters_folder",
    "adapters_bytes",
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TextFit:
    """A text model with the settings of a worker, whose context is still open.

    Attributes:
        bounds: of its workload.
        sizes: what it takes.
        computation: where and with what it is computed.
        task: what it is for.
        wish: where routed experts are to lie.
        budget_bytes: what models may take of memory; None: no end of it.
        has_pack: whether a pack of experts lies beside the checkpoint that can be mapped here.
        adapters_bytes: of adapters that may be mounted.
    """

    bounds: TextSettings
    sizes: TextSizes
    computation: Computation
    task: TextTask
    wish: ExpertsWish
    budget_bytes: int | None
    has_pack: bool
    adapters_bytes: int

    @classmethod
    def of(
        cls,
        checkpoint: TextCheckpoint,
        path: Path,
        settings: Mapping[str, Any],
        task: TextTask,
        budget_bytes: int | None,
    ) -> TextFit:
        """Put together what decides.

        Args:
            checkpoint: its headers; of a model for vectors without what vectors have no use for.
            path: its folder or GGUF file.
            settings: of a worker, by name, some of `SETTINGS`; for others a worker's own defaults hold.
            task: what it is for.
            budget_bytes: what models may take of memory; None: no end of it.

        Raises:
            ModelLoadFailed: its keys and values cannot be kept as asked.
            CheckpointError: experts are to be mapped, and their pack is of no use.
        """
        computation = Computation.of(
            checkpoint, machine.device(), has_kernels=has_kernels(settings), is_reference=is_reference(settings)
        )
        try:
            text = str(settings.get("kv_scheme", "none"))
            scheme = KVScheme.from_text(text, folder=path if checkpoint.format == "safetensors" else None)
            sizes = TextSizes(checkpoint, computation, scheme)
        except KVSchemeError as error:
            raise ModelLoadFailed(str(error), option=error.option) from error
        wish = ExpertsWish.of(settings)
        has_pack = _can_map(checkpoint, is_asked=wish.mode is ExpertsMode.MAPPED)
        adapters_bytes = _adapters_bytes(settings) if task == "generate" else 0
        return cls(bounds_of(settings), sizes, computation, task, wish, budget_bytes, has_pack, adapters_bytes)

    def experts(self, context_tokens: int) -> ExpertsChoice | None:
        """Return where routed experts lie with such a context; None: the model has none.

        Raises:
            ModelLoadFailed: they cannot lie where the settings have them, or there are none.
        """
        needs = self.sizes.experts
        if needs is None:
            self.wish.check_none("this model has no routed experts")
            return None
        room = self.budget_bytes
        if room is not None:
            room -= self.fit(context_tokens, experts_bytes=0).total_bytes
        return choose_experts(self.wish, needs, room, has_pack=self.has_pack)

    def fit(self, context_tokens: int, experts_bytes: int | None = None) -> Fit:
        """Return what it takes with such a context.

        Args:
            context_tokens: prompt and output of one row.
            experts_bytes: of routed experts in memory; None: all of them.

        Raises:
            ModelLoadFailed: its keys and values cannot be kept as asked, or in so little.
        """
        try:
            return self.sizes.fit(self._run(context_tokens, experts_bytes))
        except KVSchemeError as error:
            raise ModelLoadFailed(str(error), option=error.option) from error

    def total_bytes(self, context_tokens: int) -> float:
        """Return what it takes in all with such a context; no end of it where it would not load."""
        try:
            experts = self.experts(context_tokens)
            return self.fit(context_tokens, None if experts is None else experts.memory_bytes).total_bytes
        except ModelLoadFailed:
            return math.inf

    def _run(self, context_tokens: int, experts_bytes: int | None) -> Run:
        bounds, is_reference = self.bounds.fitting(context_tokens, self.sizes.kv), self.computation.is_reference
        run = Run(
            context_tokens=context_tokens,
            num_rows=bounds.max_batch_rows,
            num_logits=bounds.max_batch_rows,
            kv_tokens=bounds.kv_tokens(context_tokens, self.sizes.kv.rows_bytes),
            chunk_tokens=REFERENCE_CHUNK_TOKENS if is_reference else bounds.prefill_chunk_tokens,
            prefix_bytes=0 if is_reference else bounds.prefixes.max_bytes,
            experts_bytes=experts_bytes,
            adapters_bytes=self.adapters_bytes,
        )
        if self.task != "generate":
            kv_tokens = run.kv_tokens + SHORT_STEPS * run.chunk_tokens
            num_logits = run.num_rows if self.task == "rerank" else 0
            run = replace(run, num_rows=NUM_SLOTS, num_logits=num_logits, kv_tokens=kv_tokens, prefix_bytes=0)
        return run


def _can_map(checkpoint: TextCheckpoint, *, is_asked: bool) -> bool:
    """Tell whether there is a pack to map; one that is of no use is told, or raised where it is asked for."""
    if not machine.has_kernels() or machine.device() == "cuda":
        return False
    try:
        return find_pack(checkpoint) is not None
    except CheckpointError as error:
        if is_asked:
            raise
        _log.warning("the pack of experts is not used: %s", error)
        return False


def _adapters_bytes(settings: Mapping[str, Any]) -> int:
    """Return what adapters may take: nothing where there is no folder of them."""
    return settings.get("adapters_bytes", ADAPTERS_BYTES) if settings.get("adapters_folder") else 0


def has_kernels(settings: Mapping[str, Any]) -> bool:
    """Say whether native kernels compute with such settings, where the device is the CPU."""
    return machine.has_kernels() and settings.get("cpu_kernels", True)


def is_reference(settings: Mapping[str, Any]) -> bool:
    """Say whether such settings are for the reference path."""
    return settings.get("path") == "reference"


def bounds_of(settings: Mapping[str, Any]) -> TextSettings:
    """Return the bounds of a workload with such settings, as `worker.model_loading.text_settings` does."""
    names = {"max_batch_rows", "prefill_chunk_tokens", "kv_bytes"}
    given = {name: value for name, value in settings.items() if name in names}
    if "prefix_cache_bytes" in settings:
        given["prefixes"] = PrefixSettings(max_bytes=settings["prefix_cache_bytes"])
    return TextSettings(max_context_tokens=settings.get("context_tokens"), **given)
