"""Loads tiny mixtures whose experts lie in slabs, beside the same models with all experts in memory."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np

from models import registry
from models.checkpoint.checkpoint import open_checkpoint
from models.checkpoint.kv_scheme import KVScheme
from models.checkpoint.sizes import Computation
from models.checkpoint.weights import Weights
from models.experts.slabs import Slabs
from models.layers.choosing import arithmetic_of, dtype_of
from models.layers.device import device_name
from models.layers.experts import ExpertsHooks
from models.registry import LoadedModel, load
from models.step import NumericPath
from native import kernels
from tests.models.families import Q4
from tests.models.stepping import step_logits
from tests.support.tiny_families import Tiny

MANY = Tiny("qwen3_moe", {"num_experts": 24, "num_hidden_layers": 3, "num_experts_per_tok": 4}, Q4)


@dataclass(frozen=True, slots=True)
class InSlabs:
    """A model and its slabs."""

    loaded: LoadedModel
    slabs: Slabs


def resident(folder: Path, path: NumericPath) -> LoadedModel:
    """Load a model with all of its experts in memory."""
    return load(open_checkpoint(folder), path, lambda _: None)


@contextmanager
def in_slabs(
    folder: Path,
    path: NumericPath,
    budget_bytes: int | None = None,
    usage_file: Path | None = None,
    *,
    more_slots: int | None = None,
) -> Generator[InSlabs]:
    """Load a model with its experts in slabs.

    Args:
        folder: of the checkpoint.
        path: how it computes.
        budget_bytes: of the slabs.
        usage_file: of their ledger.
        more_slots: slots above the smallest budget, instead of `budget_bytes`.
    """
    checkpoint = open_checkpoint(folder)
    has_kernels, is_reference = kernels.is_available(), path is NumericPath.REFERENCE
    computation = Computation.of(checkpoint, device_name(), has_kernels=has_kernels, is_reference=is_reference)
    dtype, arithmetic = dtype_of(computation), arithmetic_of(computation)
    per_token = checkpoint.text.experts.num_chosen
    slabs = Slabs(per_token, budget_bytes, usage_file)
    weights = Weights(checkpoint, dtype, arithmetic, experts=ExpertsHooks(source=slabs))
    model = registry._build(checkpoint, weights)
    weights.audit()
    weights.materialize(lambda done, total: None)
    if more_slots is not None:
        slabs._budget_bytes = least_budget(slabs, more_slots)
    slabs.fill()
    loaded = LoadedModel(
        model=model,
        tokenizer=checkpoint.tokenizer(),
        checkpoint=checkpoint,
        path=path,
        device=computation.device,
        dtype=dtype,
        arithmetic=arithmetic,
        kv_scheme=KVScheme(),
        weights_bytes=weights.nbytes,
    )
    try:
        yield InSlabs(loaded, slabs)
    finally:
        slabs.close()


def least_budget(slabs: Slabs, more_slots: int = 0) -> int:
    """Return the smallest budget of a model, and room for some more slots in each slab."""
    return slabs.least_bytes + sum(
        group.geometry.slots_bytes(slabs._least(group) + more_slots) - group.geometry.slots_bytes(slabs._least(group))
        for group in slabs._groups.values()
    )


def least_budget_of(folder: Path) -> int:
    """Return the smallest budget of slabs for the fast path of a checkpoint."""
    with in_slabs(folder, NumericPath.FAST) as model:
        return model.slabs.least_bytes


def tokens(count: int, seed: int = 0) -> tuple[int, ...]:
    """Return random tokens."""
    return tuple(int(token) for token in np.random.default_rng(seed).integers(0, 256, count))


def held(model: InSlabs) -> list[str]:
    """Return the states of all slots, by their counts."""
    slabs = model.slabs._slabs
    return [slab._slab.state(slot) for slab in slabs for slot in range(slab.residency.division.num_slots)]


def assert_same_bits(
    model: InSlabs, whole: LoadedModel, prompt: Sequence[int], num_tokens: int, chunk: int | None = None
) -> None:
    """Compare the logits of every position of a prompt, and of each token after it."""
    ours, theirs = model.loaded.make_cache(1), whole.make_cache(1)
    size, expected = chunk or len(prompt), mx.zeros((1, 1))
    for start in range(0, len(prompt), size):
        part = tuple(prompt[start : start + size])
        everywhere = tuple(range(len(part)))
        expected = step_logits(whole, theirs, part, everywhere)
        assert mx.array_equal(step_logits(model.loaded, ours, part, everywhere), expected), f"prompt from {start}"
    token = int(np.argmax(np.array(expected[-1])))
    for index in range(num_tokens):
        expected = step_logits(whole, theirs, (token,))
        assert mx.array_equal(step_logits(model.loaded, ours, (token,)), expected), f"token {index}"
        # Not always the likeliest, or the same experts are asked again and again.
        token = int(np.argmax(np.array(expected[-1]))) if index % 3 else (token * 31 + index) % 256
