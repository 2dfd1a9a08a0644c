"""Both caches keep exactly what was committed, whatever happened in between."""

from collections.abc import Callable
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.blocks import BLOCK_TOKENS, Part
from models.checkpoint.kv_scheme import KVScheme
from models.errors import BlocksExhausted, BytesRejected, CommitError, PlanError
from models.layers.arithmetic import Arithmetic
from models.layers.cache import AttentionLayer, Cache, Step
from models.layers.caches import Room, make_cache
from models.layers.mlx_arithmetic import MlxCpuArithmetic
from models.layers.native_arithmetic import NativeArithmetic
from models.step import RowPlan, StepPlan
from native import kernels

HEADS, WIDTH, LAYERS = 2, 8, 3
WINDOW = 40
FULL = AttentionLayer(HEADS, HEADS, WIDTH, 1.0)
WINDOWED = AttentionLayer(HEADS, HEADS, WIDTH, 1.0, WINDOW)
KINDS: dict[str, tuple[Callable[[], Arithmetic], tuple[AttentionLayer, ...]]] = {
    "rows": (MlxCpuArithmetic, (FULL,) * LAYERS),
    "rows with windows": (MlxCpuArithmetic, (FULL, WINDOWED, FULL)),
    "paged": (NativeArithmetic, (FULL,) * LAYERS),
    "paged with windows": (NativeArithmetic, (WINDOWED, FULL, WINDOWED)),
}


def new_cache(kind: str, num_slots: int = 2, num_tokens: int | None = None) -> Cache:
    if kind.startswith("paged") and not kernels.is_available():
        pytest.skip("built without the native extension")
    arithmetic, layers = KINDS[kind]
    return make_cache(layers, arithmetic(), mx.float32, KVScheme(), Room(num_slots, num_tokens))


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def cache(kind: str) -> Cache:
    return new_cache(kind)


def plan(*rows: tuple[int, list[int], int]) -> StepPlan:
    return StepPlan(tuple(RowPlan(slot, tuple(tokens), start, ()) for slot, tokens, start in rows))


def vectors(tokens: list[int], layer: int, seed: int) -> mx.array:
    """Return a random vector for each token and layer: [1, T, H * D]."""
    found = [np.random.default_rng((token, layer, seed)).standard_normal(HEADS * WIDTH) for token in tokens]
    return mx.array(np.array(found, dtype=np.float32)[None])


def attend(step: Step, tokens: list[int]) -> list[np.ndarray]:
    """Run a pretended model: what each layer gives for each token of the step, [T, H * D]."""
    mixed: list[np.ndarray] = []
    for layer in range(LAYERS):
        queries, keys, values = (vectors(tokens, layer, seed) for seed in range(3))
        mixed.append(np.array(step.attend(layer, queries, keys, values, None))[0])
    return mixed


def expected(cache_kind: str, history: list[int], num_new: int) -> list[np.ndarray]:
    """Return the same, computed from the whole history in float64."""
    _, layers = KINDS[cache_kind]
    mixed: list[np.ndarray] = []
    for layer, shape in enumerate(layers):
        queries, keys, values = (
            np.array(vectors(history, layer, seed))[0].astype(np.float64).reshape(-1, HEADS, WIDTH) for seed in range(3)
        )
        scores = np.einsum("qhd,khd->hqk", queries, keys)
        places = np.arange(len(history))
        is_seen = places[None] <= places[:, None]
        if shape.window is not None:
            is_seen &= places[None] > places[:, None] - shape.window
        scores = np.where(is_seen[None], scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed.append(np.einsum("hqk,khd->qhd", weights, values).reshape(len(history), -1)[-num_new:])
    return mixed


def assert_close(found: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)


@dataclass
class Life:
    """A cache beside plain lists of the tokens that its slots should hold."""

    kind: str
    cache: Cache
    plain: list[list[int]] = field(default_factory=lambda: [[], []])
    parts: list[tuple[list[Part], list[int]]] = field(default_factory=list["tuple[list[Part], list[int]]"])

    def add(self, slots: list[int], tokens: list[int], accepted: int) -> None:
        """Add the same tokens to some slots in one step, and accept the first of them."""
        rows = [(slot, tokens, self.cache.length(slot)) for slot in slots]
        step = self.cache.begin(plan(*rows))
        found = attend(step, tokens * len(slots))
        for number, slot in enumerate(slots):
            part = slice(number * len(tokens), (number + 1) * len(tokens))
            wanted = expected(self.kind, self.plain[slot] + tokens, len(tokens))
            assert_close([mixed[part] for mixed in found], wanted)
            self.cache.commit(slot, accepted)
            self.plain[slot] = self.plain[slot] + tokens[:accepted]

    def share(self, slot: int) -> None:
        parts = self.cache.share(slot)
        assert len(parts) == len(self.plain[slot]) // BLOCK_TOKENS
        self.parts.append((list(parts), self.plain[slot][: len(parts) * BLOCK_TOKENS]))

    def adopt(self, slot: int, number: int) -> None:
        if not self.parts:
            return
        parts, tokens = self.parts[number % len(self.parts)]
        usable = self.cache.usable(parts[: len(parts) - number % 2])
        self.release(slot)
        self.cache.adopt(slot, parts[:usable])
        self.plain[slot] = tokens[: usable * BLOCK_TOKENS]

    def release(self, slot: int) -> None:
        self.cache.release(slot)
        self.plain[slot] = []

    def end(self) -> None:
        """Let everything go; nothing may be left."""
        for slot in range(2):
            self.add([slot], [999], 0)
            self.release(slot)
        for parts, _ in self.parts:
            for part in parts:
                part.drop()
        assert self.cache.nbytes == 0


@st.composite
def actions(draw: st.DrawFn) -> list[tuple[str, int, int, int]]:
    """A history: verb, slot, number of tokens, and a second number for the verb."""
    verbs = st.sampled_from(["add", "add", "add", "both", "share", "adopt", "release", "trim"])
    sizes = st.sampled_from([1, 1, 2, 5, BLOCK_TOKENS - 1, BLOCK_TOKENS, 2 * BLOCK_TOKENS + 1])
    one = st.tuples(verbs, st.integers(0, 1), sizes, st.integers(0, 600))
    return draw(st.lists(one, max_size=12))


def live(life: Life, history: list[tuple[str, int, int, int]]) -> None:
    for number, (verb, slot, size, choice) in enumerate(history):
        tokens = list(range(100 * number, 100 * number + size))
        match verb:
            case "add":
                life.add([slot], tokens, min(choice, size))
            case "both":
                life.add([0, 1], tokens, size)
            case "share":
                life.share(slot)
            case "adopt":
                life.adopt(slot, choice)
            case "release":
                life.release(slot)
            case _:
                life.cache.trim()
        assert [life.cache.length(each) for each in range(2)] == [len(tokens) for tokens in life.plain]
    life.end()


@pytest.mark.parametrize("kind", KINDS)
@given(history=actions())
@settings(max_examples=25, deadline=None)
def test_holds_what_plain_lists_hold_after_any_history(kind: str, history: list[tuple[str, int, int, int]]) -> None:
    live(Life(kind, new_cache(kind)), history)


@pytest.mark.parametrize("kind", ["rows", "paged"])
def test_the_histories_find_a_cache_that_keeps_one_token_too_many(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = new_cache(kind)
    commit = cache.commit
    monkeypatch.setattr(cache, "commit", lambda slot, accepted: commit(slot, max(accepted, 1)))
    with pytest.raises(AssertionError):
        live(Life(kind, cache), [("add", 0, 5, 0), ("add", 0, 5, 5)])


def test_a_prefix_is_shared_by_sequences_that_go_their_own_ways(kind: str, cache: Cache) -> None:
    life = Life(kind, cache)
    life.add([0], list(range(2 * BLOCK_TOKENS + 3)), 2 * BLOCK_TOKENS + 3)
    life.share(0)
    life.adopt(1, 0)
    assert cache.length(1) == 2 * BLOCK_TOKENS
    life.add([1], [500, 501], 2)
    life.add([0], [600], 1)
    life.release(0)
    life.add([1], [502], 1)
    life.end()


def test_parts_outlive_their_process_as_bytes(kind: str, cache: Cache) -> None:
    life = Life(kind, cache)
    life.add([0], list(range(BLOCK_TOKENS * 2)), BLOCK_TOKENS * 2)
    data = [cache.write(part) for part in cache.share(0)]
    other = new_cache(kind)
    assert other.fingerprint == cache.fingerprint
    read = [part for each in data if (part := other.read(each)) is not None]
    second = Life(kind, other, parts=[(read, life.plain[0])])
    second.adopt(0, 0)
    second.add([0], [7, 8, 9], 3)
    second.end()


def test_bytes_of_something_else_are_refused(cache: Cache) -> None:
    for data in (b"", b"\x01", b"\x07" * 100):
        with pytest.raises(BytesRejected):
            cache.read(data)


def test_caches_of_other_layers_do_not_read_each_others_bytes() -> None:
    words = {new_cache(kind).fingerprint for kind in KINDS}
    assert len(words) == len(KINDS)


@pytest.mark.parametrize("kind", ["paged", "rows"])
def test_room_is_promised_until_it_is_full(kind: str) -> None:
    cache = new_cache(kind, num_tokens=4 * BLOCK_TOKENS)
    slack = 2 if kind == "paged" else 0  # the last block of each slot
    assert cache.reserve(0, 3 * BLOCK_TOKENS)
    assert not cache.reserve(1, (2 + slack) * BLOCK_TOKENS)
    assert cache.reserve(1, BLOCK_TOKENS)
    cache.release(0)
    assert cache.reserve(1, 3 * BLOCK_TOKENS)


def test_a_slot_that_was_promised_nothing_cannot_take_what_others_were() -> None:
    cache = new_cache("paged", num_tokens=2 * BLOCK_TOKENS)
    assert cache.reserve(0, 4 * BLOCK_TOKENS)
    with pytest.raises(BlocksExhausted):
        cache.begin(plan((1, [1], 0)))


def test_one_step_may_not_open_a_slot_twice(cache: Cache) -> None:
    with pytest.raises(PlanError):
        cache.begin(plan((0, [1], 0), (0, [2], 1)))


@pytest.mark.parametrize(
    ("wrong", "rows"),
    [("another start", [(0, [1], 3)]), ("no tokens", [(0, [], 0)]), ("no slot", [(2, [1], 0)]), ("no rows", [])],
)
def test_a_plan_that_does_not_fit_is_refused(cache: Cache, wrong: str, rows: list[tuple[int, list[int], int]]) -> None:
    with pytest.raises(PlanError):
        cache.begin(plan(*rows))
    assert cache.length(0) == 0, wrong


def test_a_slot_has_one_open_step(cache: Cache) -> None:
    step = cache.begin(plan((0, [1], 0)))
    with pytest.raises(PlanError):
        cache.begin(plan((0, [1], 0)))
    attend(step, [1])
    cache.commit(0, 1)
    with pytest.raises(PlanError):
        attend(step, [1])
    with pytest.raises(CommitError):
        cache.commit(0, 1)


@pytest.mark.parametrize("accepted", [-1, 3])
def test_no_more_is_accepted_than_was_added(cache: Cache, accepted: int) -> None:
    attend(cache.begin(plan((0, [1, 2], 0))), [1, 2])
    with pytest.raises(CommitError):
        cache.commit(0, accepted)


def test_tokens_on_the_device_fill_the_rows_that_lack_them(cache: Cache) -> None:
    rows = (RowPlan(0, None, 0, ()), RowPlan(1, (5, 6), 0, ()))
    step = cache.begin(StepPlan(rows), mx.array([9], dtype=mx.uint32))
    assert step.tokens.tolist() == [[9, 5, 6]]
    assert step.positions.tolist() == [0, 0, 1]


def test_a_step_that_lacks_tokens_from_the_device_is_refused(cache: Cache) -> None:
    with pytest.raises(PlanError):
        cache.begin(StepPlan((RowPlan(0, None, 0, ()),)))


def test_a_slot_that_is_not_empty_cannot_adopt(kind: str, cache: Cache) -> None:
    life = Life(kind, cache)
    life.add([0], list(range(BLOCK_TOKENS)), BLOCK_TOKENS)
    with pytest.raises(PlanError):
        cache.adopt(0, cache.share(0))


@pytest.mark.parametrize("window", [None, WINDOW])
@pytest.mark.parametrize("arithmetic", [MlxCpuArithmetic, NativeArithmetic])
def test_a_later_layer_sees_what_an_earlier_one_has_stored(
    arithmetic: Callable[[], Arithmetic], window: int | None
) -> None:
    if arithmetic is NativeArithmetic and not kernels.is_available():
        pytest.skip("built without the native extension")
    layer = AttentionLayer(HEADS, HEADS, WIDTH, 1.0, window, is_read_again=True)
    cache = make_cache((layer,), arithmetic(), mx.float32, KVScheme(), Room(2))
    histories: list[list[int]] = [[], []]
    for rows in (([0, *range(9)], [1, *range(50, 120)]), ([1, 4, 5], [0, 7]), ([0, 3], [1, 2])):
        plans = [(slot, tokens, len(histories[slot])) for slot, *tokens in rows]
        step = cache.begin(plan(*plans))
        together = [token for _, *tokens in rows for token in tokens]
        queries, keys, values, others = (vectors(together, 0, seed) for seed in range(4))
        first = np.array(step.attend(0, queries, keys, values, None))
        again = np.array(step.attend_again(0, others, keys, values, None))
        assert np.array_equal(np.array(step.attend_again(0, queries, keys, values, None)), first)
        begin = 0
        for slot, *tokens in rows:
            histories[slot] += tokens
            found = again[0, begin : begin + len(tokens)]
            assert_close([found], [mixed_by(others[0, begin : begin + len(tokens)], histories[slot], window)])
            cache.commit(slot, len(tokens))
            begin += len(tokens)
        assert cache.length(0) == len(histories[0])


def mixed_by(queries: mx.array, history: list[int], window: int | None) -> np.ndarray:
    """Attend from the last tokens of a history with queries [T, H * D], in float64."""
    keys, values = (np.array(vectors(history, 0, seed), np.float64)[0].reshape(-1, HEADS, WIDTH) for seed in (1, 2))
    found: list[np.ndarray] = []
    for number, query in enumerate(np.array(queries, np.float64).reshape(-1, HEADS, WIDTH)):
        end = len(history) - queries.shape[0] + number + 1
        begin = 0 if window is None else max(0, end - window)
        scores = np.einsum("hd,lhd->hl", query, keys[begin:end])
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        found.append(np.einsum("hl,lhd->hd", weights, values[begin:end]).reshape(-1))
    return np.stack(found)


def test_a_layer_that_is_not_read_again_keeps_nothing_for_others() -> None:
    cache = new_cache("rows")
    step = cache.begin(plan((0, [1, 2], 0)))
    attend(step, [1, 2])
    with pytest.raises(PlanError, match="layer 0 has stored nothing that is read again"):
        step.attend_again(0, vectors([1, 2], 0, 0), vectors([1, 2], 0, 1), vectors([1, 2], 0, 2), None)


@pytest.mark.parametrize("kind", ["rows", "paged"])
def test_a_step_that_is_closed_cannot_be_read_again(kind: str) -> None:
    cache = new_cache(kind)
    step = cache.begin(plan((0, [1, 2], 0)))
    attend(step, [1, 2])
    cache.commit(0, 2)
    with pytest.raises(PlanError):
        step.attend_again(0, vectors([1, 2], 0, 0), vectors([1, 2], 0, 1), vectors([1, 2], 0, 2), None)
