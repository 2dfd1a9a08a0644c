"""A recurrent layer's state is reused from the ends of blocks, and never pretends to go back."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import pytest

from models.layers.stores.state import StateStore
from models.layers.stores.store import StoreError

WIDTH = 8


def inputs(start: int, num_tokens: int) -> mx.array:
    """Return [T, WIDTH]; each token's numbers are its own."""
    return mx.array(np.random.default_rng(5).normal(size=(400, WIDTH)).astype(np.float32)[start : start + num_tokens])


def run(store: StateStore, num_tokens: int) -> Sequence[mx.array]:
    """Run a toy recurrent layer over the next tokens: a decaying sum, and the last input."""
    total, last = store.state or (mx.zeros(WIDTH), mx.zeros(WIDTH))
    states: list[Sequence[mx.array]] = []
    done = store.length
    for piece in store.pieces(num_tokens):
        for x in inputs(done, piece):
            total, last = total * 0.9 + x * last, x
        states.append((total, last))
        done += piece
    store.advance(states, num_tokens)
    assert store.state is not None
    return store.state


def walk(store: StateStore, num_tokens: int) -> None:
    """Go on with states that say nothing."""
    if num_tokens:
        store.advance([(mx.zeros(1),)] * len(store.pieces(num_tokens)), num_tokens)


def same(left: Sequence[mx.array], right: Sequence[mx.array]) -> bool:
    return all(mx.array_equal(a, b).item() for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize(
    ("before", "num_tokens", "pieces"),
    [(0, 5, [5]), (0, 32, [32]), (0, 33, [32, 1]), (30, 70, [2, 32, 32, 4]), (32, 1, [1]), (31, 1, [1]), (9, 0, [])],
)
def test_pieces_end_where_blocks_end(before: int, num_tokens: int, pieces: list[int]) -> None:
    store = StateStore()
    walk(store, before)
    assert store.pieces(num_tokens) == pieces


@pytest.mark.parametrize(
    ("before", "num_tokens", "pieces"),
    [
        (0, 127, [96, 31]),
        (0, 128, [96, 32]),  # others may begin at 128, and who has the same prompt at 96
        (0, 300, [128, 128, 32, 12]),
        (100, 40, [28, 12]),
        (127, 1, [1]),
        (60, 3, [3]),
        (60, 4, [4]),
    ],
)
def test_few_ends_of_blocks_are_marks_where_a_state_is_large(before: int, num_tokens: int, pieces: list[int]) -> None:
    store = StateStore(mark_blocks=4)
    walk(store, before)
    assert store.pieces(num_tokens) == pieces


def test_tokens_that_come_one_by_one_leave_a_state_at_each_mark_alone() -> None:
    store = StateStore(mark_blocks=4)
    walk(store, 30)
    for _ in range(300):
        walk(store, 1)
    assert [store.extract(block) is not None for block in range(10)] == [block in (3, 7) for block in range(10)]


def test_a_state_does_not_depend_on_how_tokens_are_cut_into_steps() -> None:
    whole, single = StateStore(), StateStore()
    run(whole, 100)
    for _ in range(100):
        run(single, 1)
    assert same(run(whole, 1), run(single, 1))


@pytest.mark.parametrize("num_blocks", [1, 2, 3])
def test_a_store_that_adopted_goes_on_as_a_cold_one(num_blocks: int) -> None:
    first, second, cold = StateStore(), StateStore(), StateStore()
    run(first, 110)
    blocks = [first.extract(block) for block in range(num_blocks)]
    second.adopt(num_blocks, blocks)
    assert second.length == num_blocks * 32
    assert same(run(second, 40), run(cold, num_blocks * 32 + 40))


def test_only_the_last_block_is_needed() -> None:
    first, second = StateStore(), StateStore()
    run(first, 100)
    assert list(first.needed(3)) == [2]
    assert list(first.needed(0)) == []
    second.adopt(3, [None, None, first.extract(2)])
    assert same(run(second, 4), run(StateStore(), 100))


def test_an_adopted_state_can_be_shared_again() -> None:
    first, second = StateStore(), StateStore()
    run(first, 64)
    state = first.extract(1)
    assert state is not None
    second.adopt(2, [None, state])
    assert second.extract(1) == state
    assert second.extract(0) is None


def test_keeps_the_last_ends_of_blocks_only() -> None:
    store = StateStore(num_marks=2)
    run(store, 130)
    assert [store.extract(block) is not None for block in range(4)] == [False, False, True, True]
    assert store.nbytes == 3 * 2 * WIDTH * 4


def test_bytes_that_a_state_and_a_block_share_count_once() -> None:
    store = StateStore()
    run(store, 32)
    assert store.nbytes == 2 * WIDTH * 4


def test_cannot_go_back() -> None:
    store = StateStore()
    run(store, 5)
    assert not store.can_trim
    store.trim(0)
    with pytest.raises(StoreError, match="cannot go back"):
        store.trim(1)


def test_a_cleared_store_is_empty() -> None:
    store = StateStore()
    run(store, 70)
    store.clear()
    assert (store.length, store.nbytes, store.state, store.arrays()) == (0, 0, None, [])
    assert same(run(store, 10), run(StateStore(), 10))


@pytest.mark.parametrize(("num_states", "num_tokens"), [(0, 0), (1, 0), (1, 3), (3, 3)])
def test_refuses_other_states_than_those_it_has_asked_for(num_states: int, num_tokens: int) -> None:
    store = StateStore()
    walk(store, 30)
    with pytest.raises(StoreError, match="states are given for"):
        store.advance([(mx.zeros(1),)] * num_states, num_tokens)
    assert store.length == 30


def test_refuses_what_it_cannot_share_or_adopt() -> None:
    store = StateStore()
    run(store, 40)
    with pytest.raises(StoreError, match="is not full"):
        store.extract(1)
    with pytest.raises(StoreError, match="not empty"):
        store.adopt(1, [store.extract(0)])
    with pytest.raises(StoreError, match="missing"):
        StateStore().adopt(1, [None])
    with pytest.raises(StoreError, match="1 blocks are given"):
        StateStore().adopt(2, [store.extract(0)])
    StateStore().adopt(0, [])
