"""Attention over blocks: against float64, and against itself in other steps, blocks, threads and instruction sets."""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import pytest

from native import kernels, paged
from native.paged import BLOCK_TOKENS
from tests.native.arrays import EVERY_SET

TOLERANCE = 1e-5
SCALE = 0.125
NUM_LAYERS = 2
LAYER = 1

pytestmark = [
    pytest.mark.skipif(not EVERY_SET, reason="built without the native extension"),
    pytest.mark.usefixtures("cpu"),
]


@dataclass(frozen=True)
class Shape:
    """The shape of a layer; `half` pairs are turned, or no positions are applied."""

    heads: int
    kv_heads: int
    width: int
    half: int | None
    window: int = 0
    interleaved: bool = False


SHAPES = (
    Shape(9, 3, 64, 32),
    Shape(4, 2, 8, 4, interleaved=True),
    Shape(6, 1, 20, 5, window=7),
    Shape(2, 2, 80, None, window=40),
    Shape(8, 4, 128, 64, window=33, interleaved=True),
    Shape(24, 1, 16, 8),
)


def normal(random: np.random.Generator, *shape: int) -> np.ndarray:
    return random.standard_normal(shape).astype(np.float32)


class Conversation:
    """Tokens of one sequence, and how many of them were in a step."""

    def __init__(self, shape: Shape, num_tokens: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.num_tokens = num_tokens
        self.done = 0
        self.queries = normal(random, num_tokens, shape.heads * shape.width)
        self.keys = normal(random, num_tokens, shape.kv_heads * shape.width)
        self.values = normal(random, num_tokens, shape.kv_heads * shape.width)
        angles = np.arange(num_tokens)[:, None] * np.linspace(1, 0.01, shape.half or 1)
        self.cosines, self.sines = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        self.blocks: list[int] = []


class Layer:
    """One layer of a pool whose blocks are dealt in a random order."""

    def __init__(self, shape: Shape, conversations: Sequence[Conversation], seed: int = 0) -> None:
        needed = [-(-each.num_tokens // BLOCK_TOKENS) for each in conversations]
        numbers = np.random.default_rng(seed).permutation(sum(needed)).tolist()
        for each, count in zip(conversations, needed, strict=True):
            each.done = 0
            each.blocks = [numbers.pop() for _ in range(count)]
        self.shape = shape
        self.most_blocks = max(needed)
        self.pool = paged.kv_pool(sum(needed), NUM_LAYERS, shape.kv_heads, shape.width)

    def step(self, chunks: Sequence[tuple[Conversation, int]]) -> list[np.ndarray]:
        """Let the next tokens of some conversations attend; returns what each conversation got."""
        parts = [(each, slice(each.done, each.done + count)) for each, count in chunks]

        def packed(name: str) -> mx.array:
            return mx.array(np.concatenate([getattr(each, name)[part] for each, part in parts]))

        shape = self.shape
        y = paged.attention(
            packed("queries")[None],
            packed("keys")[None],
            packed("values")[None],
            None if shape.half is None else packed("cosines"),
            None if shape.half is None else packed("sines"),
            self.pool,
            mx.array([self._row(each, count) for each, count in chunks], dtype=mx.int32),
            layer=LAYER,
            scale=SCALE,
            window=shape.window,
            interleaved=shape.interleaved,
        )
        for each, count in chunks:
            each.done += count
        return np.split(np.array(y)[0], np.cumsum([count for _, count in chunks])[:-1])

    def _row(self, each: Conversation, count: int) -> list[int]:
        """Name the blocks that these tokens see, and no others."""
        seen = max(0, each.done + 1 - self.shape.window) // BLOCK_TOKENS if self.shape.window else 0
        blocks = [
            block if seen <= place and place * BLOCK_TOKENS < each.done + count else -1
            for place, block in enumerate(each.blocks)
        ]
        return [count, each.done, *blocks, *[-1] * (self.most_blocks - len(blocks))]


def whole(shape: Shape, each: Conversation, seed: int = 0) -> np.ndarray:
    """Let all tokens of a conversation attend in one step."""
    return Layer(shape, [each], seed).step([(each, each.num_tokens)])[0]


def exact(shape: Shape, each: Conversation) -> np.ndarray:
    """The same in float64."""
    q, k = (turned(shape, each, part) for part in (each.queries, each.keys))
    v = each.values.astype(np.float64).reshape(each.num_tokens, shape.kv_heads, shape.width)
    k, v = (np.repeat(part, shape.heads // shape.kv_heads, 1) for part in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) * SCALE
    places = np.arange(each.num_tokens)
    distance = places[:, None] - places
    sees = (distance >= 0) & (distance < (shape.window or each.num_tokens))
    weights = np.exp(np.where(sees, scores, -np.inf) - scores.max(-1, keepdims=True))
    mixed = np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), v)
    return mixed.reshape(each.num_tokens, -1)


def turned(shape: Shape, each: Conversation, rows: np.ndarray) -> np.ndarray:
    """Apply positions in float64; returns [tokens, heads, width]."""
    x = rows.astype(np.float64).reshape(each.num_tokens, -1, shape.width)
    if shape.half is None:
        return x
    size = 2 * shape.half
    fronts, backs = (
        (slice(0, size, 2), slice(1, size, 2)) if shape.interleaved else (slice(0, shape.half), slice(shape.half, size))
    )
    cosines, sines = each.cosines[:, None].astype(np.float64), each.sines[:, None].astype(np.float64)
    y = x.copy()
    y[..., fronts] = x[..., fronts] * cosines - x[..., backs] * sines
    y[..., backs] = x[..., backs] * cosines + x[..., fronts] * sines
    return y


def same_bits(left: np.ndarray, right: np.ndarray) -> bool:
    return np.array_equal(left.view(np.uint32), right.view(np.uint32))


def run_to_the_end(
    layer: Layer, conversations: Sequence[Conversation], random: np.random.Generator
) -> list[np.ndarray]:
    """Step by chunks of any size, some conversations in each step, in any order, with any number of threads."""
    found: list[list[np.ndarray]] = [[] for _ in conversations]
    while waiting := [i for i, each in enumerate(conversations) if each.done < each.num_tokens]:
        kernels.set_threads(int(random.integers(1, 9)))
        taken = random.permutation(waiting)[: random.integers(1, len(waiting) + 1)].tolist()
        most = [conversations[i].num_tokens - conversations[i].done for i in taken]
        counts = [int(random.integers(1, 1 + (left if random.random() < 0.2 else min(left, 5)))) for left in most]
        parts = layer.step([(conversations[i], count) for i, count in zip(taken, counts, strict=True)])
        for i, part in zip(taken, parts, strict=True):
            found[i].append(part)
    return [np.concatenate(parts) for parts in found]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_tokens_attend_to_their_own_past(instructions: str, shape: Shape) -> None:
    conversations = [Conversation(shape, n, seed=n) for n in (1, 33, 300, 64)]

    parts = Layer(shape, conversations).step([(each, each.num_tokens) for each in conversations])

    for each, part in zip(conversations, parts, strict=True):
        assert np.allclose(part, exact(shape, each), rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_tokens_have_the_same_bits_in_any_step(instructions: str, shape: Shape, seed: int) -> None:
    random = np.random.default_rng(seed)
    conversations = [Conversation(shape, int(n), seed=int(n)) for n in random.integers(1, 120, 4)]
    kernels.set_threads(1)
    alone = [whole(shape, each) for each in conversations]

    found = run_to_the_end(Layer(shape, conversations, seed + 1), conversations, random)

    assert all(same_bits(left, right) for left, right in zip(found, alone, strict=True))


def test_one_wrong_block_is_noticed_by_that_comparison() -> None:
    shape, random = SHAPES[0], np.random.default_rng(0)
    each = Conversation(shape, 100, seed=1)
    alone = whole(shape, each)
    layer = Layer(shape, [each])
    layer.step([(each, 70)])
    each.blocks[0], each.blocks[1] = each.blocks[1], each.blocks[0]

    assert not same_bits(run_to_the_end(layer, [each], random)[0], alone[70:])


def test_one_position_too_many_is_noticed_by_that_comparison() -> None:
    wide, narrow = Shape(4, 2, 32, 16, window=20), Shape(4, 2, 32, 16, window=19)
    each = Conversation(wide, 100, seed=1)

    assert not np.allclose(whole(narrow, each), exact(wide, each), rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_tokens_have_the_bits_of_attention_over_what_they_see(instructions: str, shape: Shape) -> None:
    each = Conversation(shape, 70, seed=5)

    def heads(rows: np.ndarray, count: int) -> mx.array:
        x = mx.array(rows).reshape(1, each.num_tokens, count, shape.width).swapaxes(1, 2)
        if shape.half is None or rows is each.values:
            return x
        angles = mx.array(each.cosines), mx.array(each.sines)
        return kernels.rotate(x, *angles, interleaved=shape.interleaved)

    queries, keys, values = (
        heads(rows, count)
        for rows, count in (
            (each.queries, shape.heads),
            (each.keys, shape.kv_heads),
            (each.values, shape.kv_heads),
        )
    )
    found = whole(shape, each)

    for token in range(each.num_tokens):
        seen = slice(max(0, token + 1 - shape.window) if shape.window else 0, token + 1)
        one = kernels.attention(
            queries[:, :, token : token + 1], keys[:, :, seen], values[:, :, seen], SCALE, is_causal=True
        )
        assert same_bits(np.array(one).reshape(-1), found[token])


@pytest.mark.parametrize("name", EVERY_SET)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_instruction_sets_agree(shape: Shape, name: str) -> None:
    each = Conversation(shape, 150, seed=2)
    kernels.choose_instruction_set("portable")
    portable = whole(shape, each)

    kernels.choose_instruction_set(name)

    assert np.allclose(whole(shape, each), portable, rtol=TOLERANCE, atol=TOLERANCE)


def test_a_long_context_is_read_by_any_number_of_threads() -> None:
    shape = SHAPES[0]
    each = Conversation(shape, 2000, seed=3)
    right = exact(shape, each)[-1]
    bits = []
    for threads in (1, 2, 5):
        kernels.set_threads(threads)
        layer = Layer(shape, [each])
        layer.step([(each, 1999)])
        bits.append(layer.step([(each, 1)])[0][0])

    assert np.allclose(bits[0], right, rtol=TOLERANCE, atol=TOLERANCE)
    assert all(same_bits(bits[0], other) for other in bits)


def test_sequences_share_blocks_that_one_of_them_fills_in_the_same_step() -> None:
    shape = Shape(4, 2, 16, 8)
    first, second = Conversation(shape, 64, seed=1), Conversation(shape, 64, seed=2)
    for name in ("keys", "values"):
        getattr(second, name)[:32] = getattr(first, name)[:32]
    alone = whole(shape, second)[32:]
    layer = Layer(shape, [first, second])
    second.blocks[0] = first.blocks[0]
    second.done = 32

    assert same_bits(layer.step([(second, 32), (first, 64)])[0], alone)


def test_only_its_own_places_of_the_pool_are_written() -> None:
    shape = Shape(2, 1, 8, None)
    each = Conversation(shape, 40, seed=1)
    layer = Layer(shape, [each])

    layer.step([(each, 40)])

    pool = np.array(layer.pool)
    second = pool[each.blocks[1], LAYER, :, 0]
    assert not pool[:, 1 - LAYER].any()
    assert np.array_equal(pool[each.blocks[0], LAYER, :, 0], [each.keys[:32], each.values[:32]])
    assert np.array_equal(second[:, :8], [each.keys[32:], each.values[32:]])
    assert not second[:, 8:].any()


def test_steps_without_tokens_are_no_error() -> None:
    pool = paged.kv_pool(1, 1, 1, 8)
    none = mx.zeros((1, 0, 8))

    for rows in (mx.zeros((0, 3), mx.int32), mx.array([[0, 0, -1]], dtype=mx.int32)):
        y = paged.attention(none, none, none, None, None, pool, rows, layer=0, scale=1.0)
        assert np.array(y).shape == (1, 0, 8)
