"""A recorded computation gives the bits of its graph, for other inputs and other sizes."""

import gc
import weakref
from collections.abc import Iterator

import mlx.core as mx
import numpy as np
import pytest

from native import dense, kernels
from native.errors import NotRecordable, OperandRejected
from native.program import Program

WIDTH = 24
ROWS = (None, "rows", None)
pytestmark = pytest.mark.skipif(not kernels.is_available(), reason="built without the native extension")


def normal(*shape: int, seed: int = 1) -> mx.array:
    return mx.array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


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


def equal_bits(left: mx.array, right: mx.array) -> bool:
    return left.shape == right.shape and bool(mx.array_equal(left.view(mx.uint32), right.view(mx.uint32)))


@pytest.mark.parametrize("num_rows", [1, 3, 300])
def test_gives_the_bits_of_the_graph(num_rows: int) -> None:
    program, x, y = recorded(), normal(1, num_rows, WIDTH, seed=5), normal(1, num_rows, WIDTH, seed=6)

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


def test_an_index_outside_fails_when_it_is_computed_and_harms_nothing() -> None:
    table = normal(5, WIDTH)
    indices = mx.array([[0, 4]], dtype=mx.int32)
    program = Program([indices], [dense.rows(table, indices)], [(None, "rows"), ROWS])

    with pytest.raises(Exception, match="outside the matrix"):
        mx.eval(program([mx.array([[0, 5]], dtype=mx.int32)]))

    assert equal_bits(program([mx.array([[3]], dtype=mx.int32)])[0], table[None, 3:4])
