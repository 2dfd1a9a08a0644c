"""Every store returns what a cold one returns, bit for bit, whatever happened before."""

from collections.abc import Callable, Sequence

import mlx.core as mx
import numpy as np
import pytest

from models.blocks import BLOCK_TOKENS
from models.layers.stores.buffers import GROWTH_TOKENS
from models.layers.stores.full import FullStore
from models.layers.stores.store import Block, Store, StoreError
from models.layers.stores.window import WindowStore
from tests.models.layers.stores import FULL, HEADS, KINDS, WIDTH, add, entries, parts_of, run_history, same_bits

SEEDS = range(12)
kinds = pytest.mark.parametrize("kind", KINDS)
full_kinds = pytest.mark.parametrize("kind", FULL)


@full_kinds
@pytest.mark.parametrize("sizes", [[1] * 140, [7] * 20, [96, 44], [97, 43], [33, 1, 106], [139, 1]])
def test_a_token_s_numbers_do_not_depend_on_how_tokens_are_cut_into_steps(kind: str, sizes: list[int]) -> None:
    whole = add(FULL[kind](), range(140))
    store, start = FULL[kind](), 0
    for size in sizes:
        seen = add(store, range(start, start + size))
        start += size
        assert same_bits(seen, [array[:, :, :start] for array in whole])


@kinds
@pytest.mark.parametrize("seed", SEEDS)
def test_holds_what_a_cold_store_holds_after_any_history(kind: str, seed: int) -> None:
    run_history(*KINDS[kind], seed)


class Untrimmed(FullStore):
    """A defect: the dropped tokens stay."""

    def trim(self, num_tokens: int) -> None:
        del num_tokens


class Lending(FullStore):
    """A defect: an extracted block is the one before."""

    def extract(self, block: int) -> Block | None:
        return super().extract(max(0, block - 1))


class Hasty(FullStore):
    """A defect: adopts in the wrong order."""

    def adopt(self, num_blocks: int, blocks: Sequence[Block | None]) -> None:
        super().adopt(num_blocks, blocks[::-1])


class Narrow(WindowStore):
    """A defect: keeps a block too few."""

    def _first_block(self, num_blocks: int) -> int:
        return min(num_blocks, super()._first_block(num_blocks) + 1)


@pytest.mark.parametrize("defect", [Untrimmed, Lending, Hasty])
def test_the_histories_catch_a_seeded_defect(defect: Callable[[int, int, mx.Dtype], Store]) -> None:
    assert caught_in(lambda: defect(HEADS, WIDTH, mx.float32))


def test_the_histories_catch_a_window_that_forgets_too_early() -> None:
    assert caught_in(lambda: Narrow(HEADS, WIDTH, mx.float32, 50))


def caught_in(make: Callable[[], Store]) -> list[int]:
    """Return the seeds whose history a store does not survive."""
    caught: list[int] = []
    for seed in SEEDS:
        try:
            run_history(make, FULL["full"], seed)
        except (AssertionError, StoreError, ValueError):
            caught.append(seed)
    return caught


@kinds
def test_a_store_that_adopted_goes_on_as_the_one_that_was_shared(kind: str) -> None:
    make, _ = KINDS[kind]
    first, second = make(), make()
    add(first, range(160))
    parts = parts_of(first)
    second.adopt(len(parts), parts)
    assert second.length == 160
    for store in (first, second):
        add(store, [500])
    assert same_bits(add(first, [501]), add(second, [501]))


@kinds
def test_a_block_goes_in_again_as_it_came_out(kind: str) -> None:
    make, _ = KINDS[kind]
    first, second = make(), make()
    add(first, range(128))
    parts = parts_of(first)
    second.adopt(len(parts), parts)
    for block in second.needed(4):
        left, right = first.extract(block), second.extract(block)
        assert left is not None
        assert right is not None
        assert same_bits([bits(array) for array in left], [bits(array) for array in right])


@kinds
def test_extracted_blocks_are_unchanged_by_what_the_store_does_next(kind: str) -> None:
    make, _ = KINDS[kind]
    store, other = make(), make()
    add(store, range(32))
    kept = store.extract(0)
    store.clear()
    add(store, range(100, 140))
    other.adopt(1, [kept])
    cold = make()
    add(cold, range(32))
    assert same_bits(add(other, [7]), add(cold, [7]))


@kinds
def test_an_extracted_block_holds_its_own_tokens_and_no_more(kind: str) -> None:
    store = KINDS[kind][0]()
    add(store, range(200))
    block = store.extract(5)
    assert block is not None
    assert {array.shape[:3] for array in block} == {(1, HEADS, BLOCK_TOKENS)}
    assert sum(array.nbytes for array in block) * GROWTH_TOKENS // BLOCK_TOKENS <= max(store.nbytes, 1)


@full_kinds
def test_needs_every_block(kind: str) -> None:
    assert list(FULL[kind]().needed(3)) == [0, 1, 2]


@kinds
def test_a_computed_block_does_not_keep_the_store_s_memory(kind: str) -> None:
    store = KINDS[kind][0]()
    add(store, range(40))
    block = store.extract(0)
    assert block is not None
    mx.eval(block, store.arrays())
    for array in block:
        assert all(not held <= address(array) < held + size for held, size in memory(store))
    before = memory(store)
    mx.eval(*store.update(entries([1], 1), entries([1], 2)), store.arrays())
    assert memory(store) == before


@full_kinds
def test_what_an_update_returned_is_unchanged_by_the_next(kind: str) -> None:
    store = FULL[kind]()
    seen = store.update(entries(range(256), 1), entries(range(256), 2))
    before = [np.array(array) for array in seen]
    store.trim(1)
    add(store, [7])
    assert same_bits([np.array(array) for array in seen], before)


@full_kinds
def test_tokens_are_written_in_place(kind: str) -> None:
    store = FULL[kind]()
    add(store, range(130))
    mx.eval(store.arrays())
    before = [address(array) for array in store.arrays()]
    for token in range(5):
        mx.eval(*store.update(entries([token], 1), entries([token], 2)), store.arrays())
    assert [address(array) for array in store.arrays()] == before


def address(array: mx.array) -> int:
    return np.array(array, copy=False).__array_interface__["data"][0]


def memory(store: Store) -> list[tuple[int, int]]:
    """Return where the arrays of a store lie, and how many bytes each takes."""
    return [(address(array), array.nbytes) for array in store.arrays()]


def bits(array: mx.array) -> np.ndarray:
    return np.array(mx.view(mx.contiguous(array), mx.uint8)).astype(np.uint32)


@kinds
def test_an_empty_store_takes_no_memory_and_a_cleared_one_is_empty(kind: str) -> None:
    store = KINDS[kind][0]()
    assert (store.length, store.nbytes, store.arrays()) == (0, 0, [])
    add(store, range(40))
    assert store.nbytes == sum(array.nbytes for array in store.arrays()) > 0
    store.clear()
    assert (store.length, store.nbytes, store.arrays()) == (0, 0, [])
    assert same_bits(add(store, range(9)), add(KINDS[kind][0](), range(9)))


@pytest.mark.parametrize(
    ("kind", "token_bytes"),
    [("full", 512), ("affine 8", 144), ("affine 4, groups of 32", 96), ("turbo k8v3", 100), ("turbo k4v2", 60)],
)
def test_a_store_grows_by_steps_of_256_tokens(kind: str, token_bytes: int) -> None:
    store = FULL[kind]()
    sizes: list[int] = []
    for count in (1, 255, 1, 600):
        add(store, range(count))
        sizes.append(store.nbytes)
    assert sizes == [HEADS * token_bytes * 256 * steps for steps in (1, 1, 2, 4)]


@kinds
@pytest.mark.parametrize("dropped", [-1, 4])
def test_refuses_to_drop_what_the_last_update_did_not_add(kind: str, dropped: int) -> None:
    store = KINDS[kind][0]()
    add(store, range(40))
    add(store, range(3))
    with pytest.raises(StoreError, match=f"{dropped} tokens"):
        store.trim(dropped)
    store.trim(2)
    with pytest.raises(StoreError, match="of 1 that can be"):
        store.trim(2)


@kinds
@pytest.mark.parametrize("block", [-1, 1, 2])
def test_refuses_to_extract_a_block_that_is_not_full(kind: str, block: int) -> None:
    store = KINDS[kind][0]()
    add(store, range(63))
    with pytest.raises(StoreError, match="is not full"):
        store.extract(block)


@full_kinds
def test_refuses_to_adopt_what_is_not_its_own(kind: str) -> None:
    other = FullStore(HEADS, WIDTH // 2, mx.float32)
    other.update(mx.zeros((1, HEADS, 32, WIDTH // 2)), mx.zeros((1, HEADS, 32, WIDTH // 2)))
    with pytest.raises(StoreError, match="another kind"):
        FULL[kind]().adopt(1, [other.extract(0)])
    with pytest.raises(StoreError, match="missing"):
        FULL[kind]().adopt(1, [None])
    with pytest.raises(StoreError, match="1 blocks are given"):
        FULL[kind]().adopt(2, [None])


@kinds
def test_refuses_to_adopt_where_there_is_something(kind: str) -> None:
    store = KINDS[kind][0]()
    add(store, range(1))
    with pytest.raises(StoreError, match="not empty"):
        store.adopt(0, [])


@full_kinds
def test_a_refused_adoption_leaves_an_empty_store(kind: str) -> None:
    store = FULL[kind]()
    with pytest.raises(StoreError):
        store.adopt(1, [None])
    assert store.length == 0
    assert same_bits(add(store, range(5)), add(FULL[kind](), range(5)))
