"""The cache keeps exactly what was committed, whatever happened in between."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.errors import CommitError, PlanError
from models.layers.cache import BLOCK_TOKENS, KVCache, Snapshot, Step
from models.step import RowPlan, StepPlan

LAYERS, HEADS, WIDTH = 2, 3, 4


def make_cache(num_slots: int = 2) -> KVCache:
    return KVCache(LAYERS, num_slots, HEADS, WIDTH, mx.float32)


def plan(slot: int, token_ids: tuple[int, ...] | None, start: int, logits_at: tuple[int, ...] = ()) -> StepPlan:
    return StepPlan((RowPlan(slot, token_ids, start, logits_at),))


def entries(tokens: list[int], layer: int) -> mx.array:
    """Keys that spell the tokens: [1, H, T, D], every element `token + layer / 10`."""
    column = mx.array(tokens, dtype=mx.float32) + layer / 10
    return mx.broadcast_to(column[None, None, :, None], (1, HEADS, len(tokens), WIDTH))


def write(step: Step, tokens: list[int]) -> list[list[float]]:
    """Run a pretended model over a step and return what each layer sees: keys, then values."""
    seen: list[list[float]] = []
    for layer in range(LAYERS):
        keys, values = step.update(layer, entries(tokens, layer), -entries(tokens, layer))
        assert keys.shape == values.shape == (1, HEADS, step.offset + len(tokens), WIDTH)
        for array in (np.array(keys), np.array(values)):
            assert (array == array[:, :1, :, :1]).all()
            seen.append([round(float(value), 1) for value in array[0, 0, :, 0]])
    return seen


def step_state(cache: KVCache, token: int) -> list[mx.array]:
    """Add a token and return the arrays that were written, not evaluated."""
    step = cache.begin(plan(0, (token,), cache.length(0)))
    for layer in range(LAYERS):
        step.update(layer, entries([token], layer), -entries([token], layer))
    cache.commit(0, 1)
    return step.state()


def address(array: mx.array) -> int:
    return np.array(array, copy=False).__array_interface__["data"][0]


def expected(tokens: list[int]) -> list[list[float]]:
    return [[sign * round(token + layer / 10, 1) for token in tokens] for layer in range(LAYERS) for sign in (1, -1)]


def add(cache: KVCache, slot: int, tokens: list[int], accepted: int | None = None) -> list[list[float]]:
    step = cache.begin(plan(slot, tuple(tokens), cache.length(slot)))
    seen = write(step, tokens)
    cache.commit(slot, len(tokens) if accepted is None else accepted)
    return seen


def contents(cache: KVCache, slot: int) -> list[list[float]]:
    """Read a slot by adding a token and dropping it again."""
    seen = add(cache, slot, [999], accepted=0)
    return [row[:-1] for row in seen]


@st.composite
def actions(draw: st.DrawFn) -> list[tuple[str, int, int, int]]:
    """A history: verb, slot, number of tokens, and a second number for the verb."""
    verbs = st.sampled_from(["add", "add", "add", "snapshot", "restore", "release", "abandon"])
    sizes = st.sampled_from([1, 1, 2, 5, BLOCK_TOKENS - 1, BLOCK_TOKENS, BLOCK_TOKENS + 1])
    one = st.tuples(verbs, st.integers(0, 1), sizes, st.integers(0, 600))
    return draw(st.lists(one, max_size=14))


@given(actions())
@settings(max_examples=60, deadline=None)
def test_holds_what_a_plain_list_holds_after_any_history(history: list[tuple[str, int, int, int]]) -> None:
    cache = make_cache()
    plain: list[list[int]] = [[], []]
    snapshots: list[tuple[Snapshot, list[int]]] = [(cache.snapshot(0), [])]
    next_token = 0
    for verb, slot, size, number in history:
        if verb == "add":
            tokens = list(range(next_token, next_token + size))
            next_token += size
            accepted = min(number, size)
            assert add(cache, slot, tokens, accepted) == expected(plain[slot] + tokens)
            plain[slot] += tokens[:accepted]
        elif verb == "snapshot":
            snapshots.append((cache.snapshot(slot), list(plain[slot])))
        elif verb == "restore":
            snapshot, held = snapshots[number % len(snapshots)]
            cache.restore(slot, snapshot)
            plain[slot] = list(held)
        elif verb == "release":
            cache.release(slot)
            plain[slot] = []
        else:
            write(cache.begin(plan(slot, (7,), cache.length(slot))), [7])
            cache.restore(slot, cache.snapshot(slot))
        assert cache.length(slot) == len(plain[slot])
    assert [contents(cache, slot) for slot in range(2)] == [expected(tokens) for tokens in plain]


def test_a_snapshot_is_unchanged_by_what_its_slot_does_next() -> None:
    cache = make_cache()
    add(cache, 0, [1, 2, 3])
    snapshot = cache.snapshot(0)
    cache.release(0)
    add(cache, 0, [7, 8, 9])
    cache.restore(1, snapshot)
    assert contents(cache, 1) == expected([1, 2, 3])
    assert contents(cache, 0) == expected([7, 8, 9])


def test_two_sequences_go_their_own_ways_from_one_snapshot() -> None:
    cache = make_cache()
    add(cache, 0, [1, 2, 3])
    cache.restore(1, cache.snapshot(0))
    add(cache, 0, [4])
    add(cache, 1, [5])
    assert contents(cache, 0) == expected([1, 2, 3, 4])
    assert contents(cache, 1) == expected([1, 2, 3, 5])


def test_a_snapshot_can_be_restored_again_and_again() -> None:
    cache = make_cache()
    add(cache, 0, [1, 2])
    snapshot = cache.snapshot(0)
    for token in (3, 4):
        cache.restore(0, snapshot)
        assert add(cache, 0, [token]) == expected([1, 2, token])


def test_tokens_beyond_the_accepted_are_dropped() -> None:
    cache = make_cache()
    add(cache, 0, [1, 2, 3, 4], accepted=2)
    assert add(cache, 0, [5]) == expected([1, 2, 5])


def test_a_step_can_begin_before_the_one_before_it_is_computed() -> None:
    cache = make_cache()
    first = cache.begin(plan(0, (1, 2), 0))
    for layer in range(LAYERS):
        first.update(layer, entries([1, 2], layer), -entries([1, 2], layer))
    cache.commit(0, 2)
    assert add(cache, 0, [3]) == expected([1, 2, 3])


def test_a_token_is_written_in_place() -> None:
    cache = make_cache()
    add(cache, 0, list(range(10)))
    before = [address(array) for array in cache.snapshot(0).keys]
    for token in range(5):
        mx.eval(step_state(cache, token))
    assert [address(array) for array in cache.snapshot(0).keys] == before


def test_bytes_are_those_of_whole_blocks() -> None:
    cache = make_cache()
    block_bytes = 2 * LAYERS * HEADS * BLOCK_TOKENS * WIDTH * 4
    sizes = [cache.nbytes]
    for num_tokens in (1, BLOCK_TOKENS - 1, 1, 2 * BLOCK_TOKENS):
        add(cache, 0, [0] * num_tokens)
        sizes.append(cache.nbytes)
    assert sizes == [0, block_bytes, block_bytes, 2 * block_bytes, 4 * block_bytes]
    cache.release(0)
    assert cache.nbytes == 0


def test_a_step_carries_its_tokens_as_int32() -> None:
    step = make_cache().begin(plan(0, (5, 6), 0))
    assert (step.tokens.dtype, step.tokens.tolist(), step.offset) == (mx.int32, [[5, 6]], 0)


@pytest.mark.parametrize("token", [mx.array([9], dtype=mx.uint32), mx.array([[9]]), mx.array(9)])
def test_a_step_takes_its_token_from_the_device(token: mx.array) -> None:
    step = make_cache().begin(plan(0, None, 0), token)
    assert (step.tokens.dtype, step.tokens.tolist()) == (mx.int32, [[9]])


@pytest.mark.parametrize(("logits_at", "values"), [((0, 1, 2), [0, 1, 2]), ((2,), [2]), ((0, 2), [0, 2]), ((), [])])
def test_a_step_selects_the_positions_whose_logits_are_asked_for(logits_at: tuple[int, ...], values: list[int]) -> None:
    step = make_cache().begin(plan(0, (5, 6, 7), 0, logits_at))
    hidden = mx.arange(3)[None, :, None]
    assert step.select(hidden)[0, :, 0].tolist() == values


@pytest.mark.parametrize(
    ("refused", "problem"),
    [
        (StepPlan(()), "one row"),
        (StepPlan((RowPlan(0, (1,), 0, ()), RowPlan(1, (1,), 0, ()))), "one row"),
        (plan(0, (1,), 1), "starts at 1"),
        (plan(0, (), 0), "no tokens"),
        (plan(0, (1, 2), 0, (2,)), "outside the step"),
        (plan(0, None, 0), "from the device"),
        (plan(2, (1,), 0), "2 slots"),
        (plan(-1, (1,), 0), "2 slots"),
    ],
)
def test_refuses_a_plan_that_does_not_fit(refused: StepPlan, problem: str) -> None:
    cache = make_cache()
    with pytest.raises(PlanError, match=problem):
        cache.begin(refused)
    assert (cache.length(0), cache.nbytes) == (0, 0)


def test_refuses_a_second_step_while_one_is_open() -> None:
    cache = make_cache()
    cache.begin(plan(0, (1,), 0))
    with pytest.raises(PlanError, match="a step is open"):
        cache.begin(plan(0, (1,), 0))


def test_refuses_to_write_to_a_step_that_is_over() -> None:
    cache = make_cache()
    step = cache.begin(plan(0, (1,), 0))
    cache.commit(0, 1)
    with pytest.raises(PlanError, match="no longer open"):
        write(step, [1])


@pytest.mark.parametrize("accepted", [-1, 3])
def test_refuses_to_accept_other_than_what_was_begun(accepted: int) -> None:
    cache = make_cache()
    cache.begin(plan(0, (1, 2), 0))
    with pytest.raises(CommitError, match="of a step of 2"):
        cache.commit(0, accepted)


def test_refuses_to_commit_without_a_step() -> None:
    with pytest.raises(CommitError, match="no step is open"):
        make_cache().commit(0, 0)
