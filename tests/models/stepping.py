"""Runs a loaded model greedily through the same verbs as the worker does."""

from collections.abc import Iterator, Sequence

import mlx.core as mx
import numpy as np

from models.layers.cache import Cache
from models.registry import LoadedModel
from models.step import AdapterUse, NumericPath, RowPlan, StepPlan

REFERENCE_CHUNK_TOKENS = 2048

Choices = list[tuple[int, mx.array]]


def step_logits(
    loaded: LoadedModel,
    cache: Cache,
    token_ids: tuple[int, ...],
    logits_at: tuple[int, ...] | None = None,
    slot: int = 0,
    adapters: tuple[AdapterUse, ...] = (),
) -> mx.array:
    """Add tokens to a slot and return the logits [N, V] of the last one, or of `logits_at`."""
    wanted = (len(token_ids) - 1,) if logits_at is None else logits_at
    step = cache.begin(StepPlan((RowPlan(slot, token_ids, cache.length(slot), wanted, adapters),)))
    if loaded.adapters is not None:
        loaded.adapters.serve(step)
    hidden = loaded.model.hidden(step)
    cache.commit(slot, len(token_ids))
    if not wanted:
        mx.eval(step.state())
        return mx.zeros((0,))
    logits = loaded.model.head(step.select(hidden))[0]
    mx.eval(logits)
    return logits


def prefill(
    loaded: LoadedModel,
    cache: Cache,
    prompt: Sequence[int],
    chunk_tokens: int,
    slot: int = 0,
    adapters: tuple[AdapterUse, ...] = (),
) -> mx.array:
    """Add a prompt and return the logits [V] after it, in the chunks of the model's path."""
    last = 1 if loaded.path is NumericPath.REFERENCE else min(chunk_tokens, len(prompt))
    inner = len(prompt) - last
    for start in range(0, inner, chunk_tokens):
        step_logits(loaded, cache, tuple(prompt[start : min(start + chunk_tokens, inner)]), (), slot, adapters)
    return step_logits(loaded, cache, tuple(prompt[inner:]), slot=slot, adapters=adapters)[-1]


def greedy(
    loaded: LoadedModel,
    prompt: Sequence[int],
    num_tokens: int,
    *,
    cache: Cache | None = None,
    slot: int = 0,
    adapters: tuple[AdapterUse, ...] = (),
) -> Iterator[tuple[int, mx.array]]:
    """Yield each token with the logits [V] that it is the largest of."""
    cache = loaded.make_cache(1) if cache is None else cache
    logits = prefill(loaded, cache, prompt, REFERENCE_CHUNK_TOKENS, slot, adapters)
    for _ in range(num_tokens):
        token = int(np.argmax(np.array(logits)))
        yield token, logits
        logits = step_logits(loaded, cache, (token,), slot=slot, adapters=adapters)[-1]


def assert_same_tokens(ours: Choices, theirs: Choices, max_gap: float) -> None:
    """Assert that tokens are equal up to a first difference between two tokens that were nearly even."""
    assert len(ours) == len(theirs)
    for index, ((our_token, _), (their_token, logits)) in enumerate(zip(ours, theirs, strict=True)):
        if our_token != their_token:
            gap = float((logits[their_token] - logits[our_token]).item())  # pyright: ignore[reportArgumentType]
            assert gap < max_gap, f"token {index} differs across a gap of {gap}"
            return
