"""A recorded computation gives the bits of its graph, for other inputs and other sizes."""

import gc
import random
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from native import dense, kernels
from native.errors import NotRecordable, OperandRejected
from native.program import Program
from tests.native.arrays import equal_bits, normal
from tests.support.failures import INDEX_OUTSIDE, problem_of

WIDTH = 24
ROWS = (None, "rows", None)
pytestmark = pytest.mark.skipif(not kernels.is_available(), reason="built without the native extension")


WEIGHTS = [normal(WIDTH, WIDTH, seed=10 + number) for number in range(3)]
SCALE = normal(WIDTH, seed=20)


@pytest.fixture(autouse=True)
def on_the_cpu() -> Iterator[None]:
    device = mx.default_device()
    mx.set_default_device(mx.cpu)
    yield
    mx.set_default_device(device)


def layers(x: mx.array, y: mx.array) -> tuple[mx.array, mx.array]:
    """Return two results of a graph whose parts are read several times."""
    first, second = dense.linears(kernels.rms_norm(x, SCALE, 1e-5), WEIGHTS[:2])
    joined = kernels.swiglu(first, kernels.add(second, SCALE))
    return dense.linear(joined, WEIGHTS[2], addend=kernels.add(x, y)), joined


def recorded(num_rows: int = 3) -> Program:
    x, y = normal(1, num_rows, WIDTH), normal(1, num_rows, WIDTH, seed=2)
    return Program([x, y], layers(x, y), [ROWS] * 4)


@pytest.mark.parametrize("num_rows", [1, 3, 300])
def test_gives_the_bits_of_the_graph(num_rows: int) -> None:
    program, x, y = recorded(), normal(1, num_rows, WIDTH, seed=5), normal(1, num_rows, WIDTH, seed=6)

    found = program([x, y])

    assert all(equal_bits(one, other) for one, other in zip(found, layers(x, y), strict=True))


@given(st.lists(st.integers(0, 70), min_size=1, max_size=5), st.integers(1, 9))
def test_gives_the_bits_of_the_graph_for_any_sizes_in_any_order(sizes: list[int], first: int) -> None:
    program = recorded(first)

    for seed, num_rows in enumerate(sizes):
        x, y = normal(1, num_rows, WIDTH, seed=seed), normal(1, num_rows, WIDTH, seed=99)
        assert all(equal_bits(one, other) for one, other in zip(program([x, y]), layers(x, y), strict=True))


def test_inputs_may_lie_in_memory_in_any_way() -> None:
    program, wide, tall = recorded(), normal(1, 9, 2 * WIDTH), normal(WIDTH, 5, 1)
    x, y = wide[:, 2:7, 3 : 3 + WIDTH], mx.transpose(tall, (2, 1, 0))

    found = program([x, y])

    assert all(equal_bits(one, other) for one, other in zip(found, layers(x, y), strict=True))


def test_runs_as_part_of_a_graph() -> None:
    program, x = recorded(), normal(1, 4, WIDTH)

    again = program([program([x * 2, x])[0] + 1, x])[0]

    assert equal_bits(again, layers(layers(x * 2, x)[0] + 1, x)[0])


def test_rows_may_be_none() -> None:
    assert recorded()([mx.zeros((1, 0, WIDTH)), mx.zeros((1, 0, WIDTH))])[0].shape == (1, 0, WIDTH)


def test_what_does_not_hang_on_the_inputs_is_computed_once() -> None:
    x, weight = normal(1, 2, WIDTH), WEIGHTS[0] + WEIGHTS[1]

    program = Program([x], [dense.linear(x, weight)], [ROWS, ROWS])

    assert equal_bits(program([x + 1])[0], dense.linear(x + 1, WEIGHTS[0] + WEIGHTS[1]))


def test_inputs_are_let_go() -> None:
    program, x, y = recorded(), normal(1, 2, WIDTH), normal(1, 2, WIDTH)
    before = mx.get_active_memory()
    mx.eval(program([x, y]))
    mx.synchronize()

    assert mx.get_active_memory() == before


def test_a_program_keeps_itself_while_it_runs() -> None:
    program, x = recorded(), normal(1, 2, WIDTH)
    watch = weakref.ref(program) if hasattr(program, "__weakref__") else lambda: None
    result = program([x, x])[0]
    del program
    gc.collect()

    assert watch() is None
    assert equal_bits(result, layers(x, x)[0])


def test_runs_of_all_sizes_leave_nothing_behind() -> None:
    program, dice = recorded(), random.Random(3)
    gc.collect()  # what other tests left
    mx.synchronize()
    before = mx.get_active_memory()
    for _ in range(500):
        num_rows = dice.randint(1, 200)
        mx.async_eval(program([mx.ones((1, num_rows, WIDTH)), mx.zeros((1, num_rows, WIDTH))])[dice.randrange(2)])
    mx.synchronize()

    assert mx.get_active_memory() == before


def use(program: Program, seed: int) -> bool:
    """Run a program often, dropping results in all states; return whether those that were read had the right bits."""
    dice = random.Random(seed)
    pairs = [(normal(1, num_rows, WIDTH, seed=5), normal(1, num_rows, WIDTH, seed=6)) for num_rows in (1, 2, 7, 40)]
    expected = [[np.array(each) for each in layers(*pair)] for pair in pairs]
    are_right = True
    for _ in range(400):
        number, kept = dice.randrange(len(pairs)), dice.randrange(2)
        results = program(pairs[number])
        if dice.random() < 0.5:
            mx.async_eval(results if dice.random() < 0.5 else results[kept])
        result = results[kept]
        del results
        if dice.random() < 0.6:
            are_right &= np.array_equal(np.array(result), expected[number][kept])
    return are_right


def test_results_may_be_dropped_while_they_are_computed() -> None:
    assert use(recorded(), 1)


def test_threads_may_share_a_program() -> None:
    program = recorded()
    with ThreadPoolExecutor(3) as threads:
        assert all(threads.map(lambda seed: use(program, seed), range(3)))


def transformed(program: Program) -> dict[str, Callable[[mx.array], object]]:
    def run(x: mx.array) -> mx.array:
        return program([x, x])[0]

    return {
        "gradient": mx.grad(lambda x: run(x).sum()),
        "derivative": lambda x: mx.jvp(run, [x], [x]),
        "batch": lambda x: mx.vmap(run)(mx.stack([x, x])),
        "any shape": mx.compile(run, shapeless=True),
    }


@pytest.mark.parametrize("name", ["gradient", "derivative", "batch", "any shape"])
def test_transforms_that_it_does_not_know_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="RunProgram"):
        mx.eval(transformed(recorded())[name](normal(1, 3, WIDTH)))


def test_runs_and_is_recorded_in_what_mlx_compiles() -> None:
    x, y, found = normal(1, 3, WIDTH), normal(1, 3, WIDTH, seed=4), []

    def record(x: mx.array, y: mx.array) -> list[mx.array]:
        found.append(Program([x, y], layers(x, y), [ROWS] * 4))
        return found[0]([x, y])

    compiled = mx.compile(record)
    for left in (x, x + 1, x):
        expected = layers(left, y)
        for results in (compiled(left, y), found[0]([left, y])):
            assert all(equal_bits(one, other) for one, other in zip(results, expected, strict=True))
    assert len(found) == 1


def test_what_is_not_known_yet_is_no_constant() -> None:
    def record(x: mx.array, weight: mx.array) -> mx.array:
        return Program([x], [dense.linear(x, weight)], [ROWS] * 2)([x])[0]

    with pytest.raises(ValueError, match="during function transformations"):
        mx.compile(record)(normal(1, 2, WIDTH), WEIGHTS[0])


def test_other_operations_are_named() -> None:
    x = normal(1, 2, WIDTH)

    with pytest.raises(NotRecordable) as caught:
        Program([x], [dense.linear(mx.sin(x), WEIGHTS[0])], [ROWS, ROWS])

    assert caught.value.operation == "Sin"


@pytest.mark.parametrize(
    "inputs",
    [
        [normal(1, 2, WIDTH)],
        [normal(1, 2, WIDTH), normal(1, 3, WIDTH)],
        [normal(1, 2, WIDTH), normal(1, 2, WIDTH + 1)],
        [normal(2, 2, WIDTH), normal(2, 2, WIDTH)],
        [normal(2, WIDTH), normal(2, WIDTH)],
        [normal(1, 2, WIDTH), normal(1, 2, WIDTH).astype(mx.float16)],
    ],
    ids=["too few", "other rows", "other width", "other batch", "no batch", "other dtype"],
)
def test_refuses_inputs_of_another_kind(inputs: list[mx.array]) -> None:
    program = recorded()

    with pytest.raises(OperandRejected, match="inputs"):
        program(inputs)


def test_refuses_what_is_not_computed_of_the_inputs() -> None:
    x, y = normal(1, 2, WIDTH), normal(1, 2, WIDTH)

    for outputs in ([x], [kernels.add(y, y)], [kernels.add(x, y)] * 2):
        with pytest.raises(OperandRejected, match=r"outputs|dimensions"):
            Program([x], outputs, [ROWS] * (1 + len(outputs)))


@pytest.mark.parametrize(
    "dimensions", [[ROWS], [ROWS, (None, "rows")], [ROWS, (None, "others", None)]], ids=["few", "short", "unknown"]
)
def test_refuses_dimensions_that_do_not_fit(dimensions: list[tuple[str | None, ...]]) -> None:
    x = normal(1, 2, WIDTH)

    with pytest.raises(OperandRejected, match="dimensions"):
        Program([x], [kernels.add(x, x)], dimensions)


def test_a_failure_is_told_to_who_reads_on_any_thread_and_to_nobody_after() -> None:
    indices = mx.array([[0]])
    program = Program([indices], [dense.rows(normal(5, WIDTH), indices)], [(None, "rows"), ROWS])

    def run() -> list[str]:
        told: list[str] = []
        for number in (5, 4, 9, 3, 2):
            mx.eval(program([mx.array([[number]])]))
            if (problem := kernels.take_failure()) is not None:
                told.append(f"{number}: {problem}")
        return told

    with ThreadPoolExecutor(1) as threads:
        told = threads.submit(run).result()

    assert told == [f"{number}: indices has a number that lies outside the matrix" for number in (5, 9)]


def test_an_index_outside_fails_when_it_is_computed_and_harms_nothing() -> None:
    table = normal(5, WIDTH)
    indices = mx.array([[0, 4]], dtype=mx.int32)
    program = Program([indices], [dense.rows(table, indices)], [(None, "rows"), ROWS])

    assert problem_of(program([mx.array([[0, 5]], dtype=mx.int32)])[0]) == INDEX_OUTSIDE

    assert equal_bits(program([mx.array([[3]], dtype=mx.int32)])[0], table[None, 3:4])
