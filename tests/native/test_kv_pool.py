"""The pool of blocks: what is refused beside it, and the memory that it takes."""

import gc
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from native import kernels, paged
from native.errors import OperandRejected, ShapeRejected
from native.paged import BLOCK_TOKENS
from tests.support.failures import problem_of

MIB = 2**20

pytestmark = [
    pytest.mark.skipif(not kernels.is_available(), reason="built without the native extension"),
    pytest.mark.usefixtures("cpu"),
]
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


GOOD_SHAPES = {"queries": (1, 3, 32), "keys": (1, 3, 16), "values": (1, 3, 16), "cosines": (3, 4), "sines": (3, 4)}


def good() -> dict[str, Any]:
    """Return operands that fit."""
    zeros = {name: mx.zeros(shape) for name, shape in GOOD_SHAPES.items()}
    rows = mx.array([[3, 30, 0, 1]], dtype=mx.int32)
    return {**zeros, "pool": paged.kv_pool(2, 1, 2, 8), "rows": rows, "layer": 0, "window": 0}


def attend(**changes: Any) -> mx.array:
    return paged.attention(**{**good(), **changes}, scale=1.0)


@pytest.mark.parametrize(
    ("operand", "wrong"),
    [
        ("queries", lambda: mx.zeros((1, 3, 24))),
        ("queries", lambda: mx.zeros((3, 32))),
        ("queries", lambda: mx.zeros((2, 3, 32))),
        ("queries", lambda: mx.zeros((1, 3, 32), mx.float16)),
        ("keys", lambda: mx.zeros((1, 2, 16))),
        ("keys", lambda: mx.zeros((1, 3, 8))),
        ("values", lambda: mx.zeros((1, 3, 8))),
        ("values", lambda: mx.zeros((1, 3, 16), mx.int32)),
        ("cosines", lambda: mx.zeros((2, 4))),
        ("cosines", lambda: mx.zeros((3, 5))),
        ("sines", lambda: mx.zeros((3, 3))),
        ("sines", lambda: None),
        ("pool", lambda: mx.zeros((2, 1, 2, 2, 16, 8))),
        ("pool", lambda: mx.zeros((2, 1, 2, 2, 32))),
        ("pool", lambda: mx.zeros((0, 1, 2, 2, 32, 8))),
        ("pool", lambda: mx.zeros((2, 1, 2, 2, 32, 8), mx.bfloat16)),
        ("rows", lambda: mx.zeros((1, 4), mx.int64)),
        ("rows", lambda: mx.zeros((4,), mx.int32)),
        ("rows", lambda: mx.zeros((1, 1), mx.int32)),
        ("layer", lambda: -1),
        ("layer", lambda: 1),
        ("window", lambda: -1),
    ],
)
def test_what_does_not_fit_is_refused_when_it_is_called(operand: str, wrong: Any) -> None:
    with pytest.raises(OperandRejected) as caught:
        attend(**{operand: wrong()})

    assert caught.value.operand == operand


@pytest.mark.parametrize("operand", ["queries", "keys", "values", "cosines", "sines", "pool", "rows"])
def test_other_layouts_are_refused_when_it_is_evaluated(operand: str) -> None:
    turned_over = good()[operand][..., ::-1]

    with pytest.raises(OperandRejected) as caught:
        mx.eval(attend(**{operand: turned_over}))

    assert caught.value.operand == operand


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ([3, 30, 0, 2], "block that lies outside"),
        ([3, 30, -1, 0], "block that lies outside"),
        ([3, 30, 2**31 - 1, 0], "block that lies outside"),
        ([3, 62, 0, 1], "fewer blocks"),
        ([3, 2**31 - 1, 0, 1], "fewer blocks"),
        ([2, 0, 0, 1], "as many tokens"),
        ([4, 0, 0, 1], "as many tokens"),
        ([3, -1, 0, 1], "negative"),
        ([-3, 0, 0, 1], "negative"),
    ],
)
def test_wrong_rows_are_an_error_and_store_nothing(row: list[int], problem: str) -> None:
    pool = paged.kv_pool(2, 1, 2, 8)
    ones = {name: mx.ones(GOOD_SHAPES[name]) for name in ("keys", "values")}

    assert problem in problem_of(attend(pool=pool, rows=mx.array([row], dtype=mx.int32), **ones))

    assert not np.array(pool).any()


@pytest.mark.parametrize("shape", [(0, 1, 1, 8), (1, -1, 1, 8), (2**31, 1, 1, 1), (2**31 - 1, 2**31 - 1, 1, 1)])
def test_a_pool_that_cannot_be_is_refused(shape: tuple[int, int, int, int]) -> None:
    with pytest.raises(ShapeRejected):
        paged.kv_pool(*shape)


def test_a_pool_is_zeros_outside_of_the_memory_of_mlx() -> None:
    before = mx.get_active_memory()

    pool = paged.kv_pool(3, 2, 2, 20)

    assert mx.get_active_memory() == before
    assert pool.shape == (3, 2, 2, 2, BLOCK_TOKENS, 20)
    assert pool.dtype == mx.float32
    assert not np.array(pool).any()


def test_no_operation_takes_a_pool_over() -> None:
    def ones() -> mx.array:
        pool = paged.kv_pool(3, 2, 2, 20)
        return mx.abs(pool) + 1

    assert bool(mx.all(ones() == 1))


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / MIB


def large_mappings() -> int:
    ranges = (line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines())
    return sum(int(end, 16) - int(begin, 16) >= 4096 * MIB for begin, end in ranges)


@on_linux
def test_a_large_pool_takes_memory_only_where_it_is_used() -> None:
    before, mappings = resident_mib(), large_mappings()

    pool = paged.kv_pool(512, 32, 8, 128)  # 8 MiB a block
    assert pool.nbytes == 4096 * MIB
    assert resident_mib() - before < 16
    assert large_mappings() == mappings + 1

    np.array(pool, copy=False)[[100, 101, 300]] = 1
    assert 20 < resident_mib() - before < 40

    paged.release_blocks(pool, [300, 100, 101, 100])
    assert resident_mib() - before < 16
    assert not np.array(pool[100:102]).any()

    del pool
    gc.collect()
    assert large_mappings() == mappings


def test_releasing_a_block_leaves_its_neighbours() -> None:
    pool = paged.kv_pool(9, 3, 1, 20)  # blocks end within pages
    view = np.array(pool, copy=False)
    view[...] = 1

    paged.release_blocks(pool, [4, 2])
    paged.release_blocks(pool, [])

    kept = [0, 1, 3, 5, 6, 7, 8]
    assert (view[kept] == 1).all()


@pytest.mark.parametrize("block", [-1, 9, 2**40])
def test_a_block_that_is_not_there_is_not_released(block: int) -> None:
    pool = paged.kv_pool(9, 3, 1, 20)

    with pytest.raises(OperandRejected) as caught:
        paged.release_blocks(pool, [0, block])

    assert caught.value.operand == "block_ids"
