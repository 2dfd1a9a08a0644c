"""Long greedy decodes of several sequences, together and alone: in every mode of its experts a model gives the same."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from models.registry import LoadedModel
from models.step import RowPlan, StepPlan
from tests.models.stepping import step_logits

NUM_STEPS = 200


def random_prompts(seed: int, sizes: Sequence[int] = (3, 41, 70)) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [[int(token) for token in random.integers(0, 256, size)] for size in sizes]


def decode_together(
    loaded: LoadedModel, prompts: Sequence[Sequence[int]], num_steps: int = NUM_STEPS
) -> list[tuple[list[int], mx.array]]:
    """Return for each prompt its greedy tokens, and the logits [steps, V] that each was taken from."""
    cache = loaded.make_cache(len(prompts))
    found = [[step_logits(loaded, cache, tuple(prompt), slot=row)[-1]] for row, prompt in enumerate(prompts)]
    tokens = [[int(np.argmax(np.array(logits[-1])))] for logits in found]
    for _ in range(num_steps - 1):
        rows = range(len(prompts))
        step = cache.begin(StepPlan(tuple(RowPlan(row, (tokens[row][-1],), cache.length(row), (0,)) for row in rows)))
        logits = loaded.model.head(step.select(loaded.model.hidden(step)))[0]
        mx.eval(logits)
        for row in rows:
            cache.commit(row, 1)
            found[row].append(logits[row])
            tokens[row].append(int(np.argmax(np.array(logits[row]))))
    return [(own, mx.stack(logits)) for own, logits in zip(tokens, found, strict=True)]


def uncached_logits(loaded: LoadedModel, prompt: Sequence[int], tokens: Sequence[int]) -> mx.array:
    """Return the logits [tokens, V] that each token was taken from, computed in one step."""
    whole = (*prompt, *tokens[:-1])
    return step_logits(loaded, loaded.make_cache(1), whole, tuple(range(len(prompt) - 1, len(whole))))
