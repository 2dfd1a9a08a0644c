"""Linear attention by the delta rule: against float64 one token after the other, and against itself cut otherwise."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import pytest

from native import kernels
from native.errors import OperandRejected
from native.recurrent import gated_delta
from tests.native.arrays import EVERY_SET, equal_bits, normal

TOLERANCE = 2e-5
State = tuple[mx.array, mx.array]

pytestmark = [
    pytest.mark.skipif(not EVERY_SET, reason="built without the native extension"),
    pytest.mark.usefixtures("instructions"),
]


@dataclass(frozen=True)
class Sizes:
    """Of a layer."""

    key_heads: int = 2
    value_heads: int = 4
    key_dim: int = 20
    value_dim: int = 13
    taps: int = 4

    @property
    def channels(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


KINDS = {
    "odd": Sizes(),
    "a head for each": Sizes(3, 3, 32, 40, 2),
    "no convolution": Sizes(1, 2, 16, 8, 1),
    "wide": Sizes(1, 2, 128, 70),
}


class Layer:
    """A layer with random weights, and its inputs for some tokens."""

    def __init__(self, sizes: Sizes, num_tokens: int) -> None:
        self.sizes = sizes
        self.convolution = 0.5 * normal(sizes.taps, sizes.channels, seed=2)
        self.decay = mx.exp(normal(sizes.value_heads, seed=3)), normal(sizes.value_heads, seed=4)
        heads = (1, num_tokens, sizes.value_heads)
        self.inputs = (normal(1, num_tokens, sizes.channels), normal(*heads, seed=5), normal(*heads, seed=6))

    def empty(self) -> State:
        sizes = self.sizes
        memory = mx.zeros((1, sizes.value_heads, sizes.value_dim, sizes.key_dim))
        return mx.zeros((1, sizes.taps - 1, sizes.channels)), memory

    def run(self, rows: Sequence[tuple[slice, State, Sequence[int]]]) -> tuple[mx.array, list[list[State]]]:
        """Go through some of the tokens, which are those of several rows."""
        inputs = [mx.concatenate([x[:, tokens] for tokens, _, _ in rows], axis=1) for x in self.inputs]
        states, pieces = [state for _, state, _ in rows], [pieces for _, _, pieces in rows]
        return gated_delta((inputs[0], inputs[1], inputs[2]), self.convolution, self.decay, states, pieces)

    def exact(self) -> np.ndarray:
        """Return float64 [T, H_v * D_v], from the empty state on."""
        sizes = self.sizes
        mixed, decays, corrections = (np.array(x, np.float64)[0] for x in self.inputs)
        rates, biases = (np.array(x, np.float64) for x in self.decay)
        padded = np.concatenate([np.zeros((sizes.taps - 1, sizes.channels)), mixed])
        weights = np.array(self.convolution, np.float64)
        memory = np.zeros((sizes.value_heads, sizes.value_dim, sizes.key_dim))
        found: list[np.ndarray] = []
        for token in range(len(mixed)):
            sums = (padded[token : token + sizes.taps] * weights).sum(axis=0)
            sums = sums / (1 + np.exp(-sums))
            width = sizes.key_heads * sizes.key_dim
            queries, keys = (
                np.repeat(part.reshape(sizes.key_heads, -1), sizes.value_heads // sizes.key_heads, axis=0)
                for part in (sums[:width], sums[width : 2 * width])
            )
            values = sums[2 * width :].reshape(sizes.value_heads, -1)
            queries, keys = (x / np.sqrt((x**2).sum(-1, keepdims=True) + 1e-6) for x in (queries, keys))
            memory = memory * np.exp(-rates * np.log1p(np.exp(decays[token] + biases)))[:, None, None]
            known = np.einsum("hvk,hk->hv", memory, keys)
            missing = (values - known) / (1 + np.exp(-corrections[token]))[:, None]
            memory = memory + missing[:, :, None] * keys[:, None]
            found.append(np.einsum("hvk,hk->hv", memory, queries).reshape(-1) / math.sqrt(sizes.key_dim))
        return np.stack(found)


def all_equal(left: State, right: State) -> bool:
    return all(equal_bits(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_find_what_the_rule_says(kind: str) -> None:
    layer = Layer(KINDS[kind], 70)
    found, _ = layer.run([(slice(0, 70), layer.empty(), [70])])
    assert np.abs(np.array(found)[0] - layer.exact()).max() < TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cuts", [[70], [1] * 70, [33, 32, 5], [2, 1, 67]], ids=["whole", "single", "few", "short"])
def test_bits_and_states_are_the_same_however_tokens_are_cut(kind: str, cuts: list[int]) -> None:
    layer = Layer(KINDS[kind], 70)
    expected, states = layer.run([(slice(0, 70), layer.empty(), [32, 32, 6])])
    state, done, parts = layer.empty(), 0, list[mx.array]()
    for count in cuts:
        found, reached = layer.run([(slice(done, done + count), state, [count])])
        state, done = reached[0][0], done + count
        parts.append(found)
    assert equal_bits(mx.concatenate(parts, axis=1), expected)
    assert all_equal(state, states[0][-1])
    middle = layer.run([(slice(0, 64), layer.empty(), [64])])[1][0][0]
    assert all_equal(middle, states[0][1])


def test_rows_are_no_business_of_one_another_and_threads_change_nothing() -> None:
    layer = Layer(KINDS["odd"], 90)
    rows = [slice(0, 50), slice(50, 51), slice(51, 90)]
    state = layer.run([(rows[0], layer.empty(), [50])])[1][0][0]
    together = [(rows[0], layer.empty(), [20, 30]), (rows[1], state, [1]), (rows[2], state, [39])]
    for threads in (1, 3):
        kernels.set_threads(threads)
        found, states = layer.run(together)
        for tokens, (_, own, pieces), reached in zip(rows, together, states, strict=True):
            alone, states_alone = layer.run([(tokens, own, pieces)])
            assert equal_bits(found[:, tokens], alone)
            assert all(all_equal(*pair) for pair in zip(reached, states_alone[0], strict=True))


def test_numbers_far_from_zero_are_their_limits() -> None:
    layer = Layer(KINDS["odd"], 3)
    heads = (1, 3, 4)
    # What decays at once leaves nothing, what is corrected by nothing stays.
    far = (layer.inputs[0], mx.full(heads, 1e4), mx.full(heads, -1e4))
    found, states = gated_delta(far, layer.convolution, layer.decay, [layer.empty()], [[3]])
    assert not np.array(found).any()
    assert not np.array(states[0][0][1]).any()


def test_what_does_not_fit_is_refused_by_name() -> None:
    layer = Layer(KINDS["odd"], 3)
    mixed, decays, corrections = layer.inputs
    seen, memory = layer.empty()

    def run(*inputs: mx.array, state: State = (seen, memory), pieces: Sequence[int] = (3,)) -> None:
        gated_delta((inputs[0], inputs[1], inputs[2]), layer.convolution, layer.decay, [state], [pieces])

    for operand, call in {
        "mixed": lambda: run(mixed[..., :-1], decays, corrections),
        "decays": lambda: run(mixed, decays[:, :2], corrections),
        "corrections": lambda: run(mixed, decays, corrections.astype(mx.float16)),
        "seen": lambda: run(*layer.inputs, state=(seen[:, 1:], memory)),
        "memory": lambda: run(*layer.inputs, state=(seen, memory[0])),
        "convolution": lambda: run(*layer.inputs, state=(seen, memory[..., 1:])),
        "pieces": lambda: run(*layer.inputs, pieces=(3, 0)),
    }.items():
        with pytest.raises(OperandRejected) as caught:
            call()
        assert caught.value.operand == operand, operand
    with pytest.raises(OperandRejected, match="states"):
        gated_delta(layer.inputs, layer.convolution, layer.decay, [], [])
