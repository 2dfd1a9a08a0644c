"""The delta rule by MLX's operations gives the same in chunks as token by token, however tokens are cut."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import pytest

from models.layers.gated_delta import DeltaRule, MlxGatedDelta
from models.layers.recurrence import State, Walk

CLOSE = 2e-5
KEY_HEADS, HEADS, KEY_DIM, VALUE_DIM, TAPS = 2, 4, 24, 16, 4
CHANNELS = 2 * KEY_HEADS * KEY_DIM + HEADS * VALUE_DIM


def normal(*shape: int, seed: int) -> mx.array:
    return mx.array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


RULE = DeltaRule(
    KEY_HEADS,
    HEADS,
    KEY_DIM,
    VALUE_DIM,
    0.5 * normal(CHANNELS, TAPS, 1, seed=1),
    normal(HEADS, seed=2),
    normal(HEADS, seed=3),
)


def inputs(num_tokens: int) -> list[mx.array]:
    heads = (1, num_tokens, HEADS)
    return [normal(1, num_tokens, CHANNELS, seed=4), normal(*heads, seed=5), 3 * normal(*heads, seed=6)]


def distance(left: Sequence[mx.array], right: Sequence[mx.array]) -> float:
    pairs = [(np.array(a), np.array(b)) for a, b in zip(left, right, strict=True)]
    return max(float(np.abs(a - b).max()) for a, b in pairs)


def run(xs: list[mx.array], walks: Sequence[Walk], *, in_chunks: bool) -> tuple[mx.array, list[list[State]]]:
    return MlxGatedDelta(RULE, compiles=False, in_chunks=in_chunks)(xs, walks)


@pytest.mark.parametrize("pieces", [(2,), (31,), (32,), (33,), (64, 64, 7), (5, 32, 32, 1)], ids=str)
def test_chunks_are_those_that_tokens_are_one_by_one(pieces: tuple[int, ...]) -> None:
    xs = inputs(sum(pieces))
    start = run(inputs(3), [Walk(0, (3,), None)], in_chunks=False)[1][0][0]
    for state in (None, start):
        walks = [Walk(0, pieces, state)]
        (found, reached), (expected, states) = (run(xs, walks, in_chunks=way) for way in (True, False))
        assert distance([found], [expected]) < CLOSE
        for left, right in zip(reached[0], states[0], strict=True):
            assert distance(left, right) < CLOSE


def test_a_token_that_is_said_again_and_again_stays_exact() -> None:
    # All keys are the same, and all that is missing is taken in: what a series of powers would lose digits by.
    xs = [mx.repeat(x[:, :1], 96, axis=1) for x in inputs(1)]
    xs[1:] = [mx.full((1, 96, HEADS), -20.0), mx.full((1, 96, HEADS), 20.0)]
    (found, _), (expected, _) = (run(xs, [Walk(0, (96,), None)], in_chunks=way) for way in (True, False))
    assert distance([found], [expected]) < CLOSE


def test_rows_are_cut_out_of_a_step() -> None:
    xs = inputs(50)
    walks = [Walk(0, (40,), None), Walk(40, (1,), None), Walk(41, (4, 5), None)]
    found, reached = run(xs, walks, in_chunks=True)
    for walk, own in zip(walks, reached, strict=True):
        part = [x[:, walk.first : walk.first + walk.count] for x in xs]
        alone, states = run(part, [Walk(0, walk.pieces, None)], in_chunks=True)
        assert distance([found[:, walk.first : walk.first + walk.count]], [alone]) < CLOSE
        assert distance(own[-1], states[0][-1]) < CLOSE
        assert len(own) == len(walk.pieces)
