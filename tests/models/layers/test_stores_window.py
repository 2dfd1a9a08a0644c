"""A window's store returns what a mask over all keys would let through, and stays small."""

import mlx.core as mx
import numpy as np
import pytest

from models.blocks import BLOCK_TOKENS
from models.layers.stores.store import StoreError
from models.layers.stores.window import WindowStore
from tests.models.layers.stores import HEADS, WIDTH, add, entries, parts_of, usable


def make(window: int) -> WindowStore:
    return WindowStore(HEADS, WIDTH, mx.float32, window)


def attended(keys: mx.array, values: mx.array, first: int, start: int, window: int) -> np.ndarray:
    """Attend from the tokens at `start` and after, over keys of which the first has position `first`, in float64."""
    k, v = (np.array(x, dtype=np.float64)[0] for x in (keys, values))
    places = first + np.arange(k.shape[1])
    queries = np.arange(start, places[-1] + 1)
    seen = (places[None] <= queries[:, None]) & (places[None] > queries[:, None] - window)
    scores = np.where(seen, k[:, start - first :] @ k.transpose(0, 2, 1), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


@pytest.mark.parametrize("window", [1, 2, 31, 32, 33, 64, 100, 500])
@pytest.mark.parametrize("sizes", [[1] * 90, [40, 1, 1, 70, 1], [200, 1, 300, 1]])
def test_attention_is_that_of_a_mask_over_all_keys(window: int, sizes: list[int]) -> None:
    store, start = make(window), 0
    for size in sizes:
        tokens = range(start, start + size)
        keys, values = store.update(entries(tokens, 1), entries(tokens, 2))
        everything = range(start + size)
        whole = attended(entries(everything, 1), entries(everything, 2), 0, start, window)
        assert np.allclose(attended(keys, values, store.first, start, window), whole, rtol=1e-12)
        assert keys.shape[2] == size + min(start, window - 1)
        start += size


def ring_of(sizes: list[int], window: int) -> list[int]:
    """Return the positions that a ring of so many places holds in their order, after chunks of these sizes."""
    ring: list[int] = []
    at = end = 0
    for size in sizes:
        tokens = list(range(end, end + size))
        end += size
        if size > 1:
            # A chunk is put behind what is left of the ring, in the order of positions.
            ring = (sorted(ring)[-(window - 1) :] if window > 1 else []) + tokens
            at = len(ring)
            continue
        ring = ring[-window:] if len(ring) > window else ring
        at = len(ring) if len(ring) < window else (0 if at >= window else at)
        ring[at : at + 1] = tokens
        at += 1
    return ring


@pytest.mark.parametrize("window", [2, 7, 24, 32])
@pytest.mark.parametrize(
    "sizes", [[1] * 90, [5, *[1] * 60], [24, *[1] * 50], [40, *[1] * 40, 9, *[1] * 40], [70, 3, *[1] * 9, 2, *[1] * 30]]
)
def test_a_window_that_turns_gives_single_tokens_the_order_of_a_ring(window: int, sizes: list[int]) -> None:
    store, start = WindowStore(HEADS, WIDTH, mx.float32, window, turns=True), 0
    for number, size in enumerate(sizes):
        tokens = range(start, start + size)
        keys, values = store.update(entries(tokens, 1), entries(tokens, 2))
        start += size
        if size == 1:
            ring = ring_of(sizes[: number + 1], window)
            assert mx.array_equal(keys, mx.concatenate([entries([place], 1) for place in ring], axis=2))
            assert mx.array_equal(values, mx.concatenate([entries([place], 2) for place in ring], axis=2))


def test_one_token_sees_exactly_the_window() -> None:
    store = make(50)
    add(store, range(200))
    keys, _ = add(store, [7])
    assert (keys.shape[2], store.first, store.length) == (50, 151, 201)


@pytest.mark.parametrize("window", [1, 50, 500])
def test_memory_stays_bounded(window: int) -> None:
    store = make(window)
    token_bytes = 2 * HEADS * WIDTH * 4
    for _ in range(800):
        add(store, [1])
        # The window, whole blocks at both of its ends, and two steps of growth.
        assert store.nbytes <= (window + 2 * BLOCK_TOKENS + 512) * token_bytes


def test_a_window_that_slides_is_moved_once_in_256_tokens() -> None:
    store = make(512)
    add(store, range(1100))
    moves = 0
    for token in range(600):
        before = store._base
        add(store, [token])
        moves += store._base != before
    assert 1 <= moves <= 3


@pytest.mark.parametrize("window", [1, 2, 31, 32, 33, 50, 64, 65, 300])
@pytest.mark.parametrize("length", [64, 65, 95, 96, 127, 400])
def test_the_last_full_block_can_always_be_adopted(window: int, length: int) -> None:
    store, other = make(window), make(window)
    for token in range(length):
        add(store, [token])
    num_blocks = length // BLOCK_TOKENS
    parts = parts_of(store)
    assert usable(store, parts) == num_blocks
    other.adopt(num_blocks, parts)
    keys, values = add(other, range(num_blocks * BLOCK_TOKENS, num_blocks * BLOCK_TOKENS + 40))
    whole = [np.array(entries(range(num_blocks * BLOCK_TOKENS + 40), salt)) for salt in (1, 2)]
    assert (keys == whole[0][:, :, other.first :]).all()
    assert (values == whole[1][:, :, other.first :]).all()


@pytest.mark.parametrize("window", [1, 2, 33, 50])
@pytest.mark.parametrize("length", [225, 250, 255])
def test_the_last_full_block_can_be_adopted_after_a_rejected_draft(window: int, length: int) -> None:
    store = make(window)
    add(store, range(length))
    add(store, range(40))
    store.trim(40)
    assert usable(store, parts_of(store)) == length // BLOCK_TOKENS


def test_tells_which_blocks_it_left_behind() -> None:
    store = make(50)
    add(store, range(300))
    add(store, range(300))
    held = [part is not None for part in parts_of(store)]
    assert held == [False] * held.index(True) + [True] * (len(held) - held.index(True))
    assert not held[0]


@pytest.mark.parametrize(
    ("window", "num_blocks", "needed"),
    [(1, 4, []), (2, 4, [3]), (33, 4, [3]), (34, 4, [2, 3]), (1000, 3, [0, 1, 2]), (50, 0, [])],
)
def test_needs_the_blocks_that_the_next_token_sees_into(window: int, num_blocks: int, needed: list[int]) -> None:
    assert list(make(window).needed(num_blocks)) == needed


def test_refuses_to_adopt_without_a_block_that_it_needs() -> None:
    store = make(50)
    add(store, range(96))
    parts = parts_of(store)
    with pytest.raises(StoreError, match="missing"):
        make(50).adopt(3, [parts[0], None, parts[2]])
    make(50).adopt(3, [None, *parts[1:]])


def test_a_dropped_token_leaves_the_window_before_it_whole() -> None:
    store, cold = make(50), make(50)
    add(store, range(290))
    add(store, range(290, 298))
    store.trim(8)
    add(cold, range(290))
    for left, right in zip(add(store, [5]), add(cold, [5]), strict=True):
        assert (left == right).all()
