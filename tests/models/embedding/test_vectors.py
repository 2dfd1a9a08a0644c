"""Vectors are cut, scaled and stored as asked."""

import numpy as np
import pytest

from models.checkpoint.pooling import PoolingMode
from models.embedding.reranker import score_of
from models.embedding.vectors import NotFiniteError, Pool, TooLargeError, VectorForm

ROWS = np.array([[3, 4, 12], [0, 0, 0], [1e-30, 0, 0]], dtype=np.float32)


def read(values: bytes, dtype: str = "<f4") -> list[list[float]]:
    return np.frombuffer(values, dtype=dtype).reshape(len(ROWS), -1).tolist()


def test_a_cut_vector_is_scaled_again() -> None:
    assert read(VectorForm(2, is_normalized=True).shaped(ROWS))[0] == pytest.approx([0.6, 0.8])
    assert read(VectorForm(2, is_normalized=False).shaped(ROWS))[0] == [3, 4]
    assert read(VectorForm(3, is_normalized=True).shaped(ROWS))[0] == pytest.approx([3 / 13, 4 / 13, 12 / 13])


def test_a_vector_of_no_length_stays() -> None:
    assert read(VectorForm(2, is_normalized=True).shaped(ROWS))[1:] == [[0, 0], [pytest.approx(1e-18), 0]]


def test_half_floats_are_rounded_once_and_little_endian() -> None:
    values = VectorForm(3, is_normalized=True, dtype="<f2").shaped(ROWS)
    assert read(values, "<f2")[0] == [float(np.float16(value / 13)) for value in (3, 4, 12)]
    assert VectorForm(3, is_normalized=True, dtype="<f2").vector_bytes * len(ROWS) == len(values)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_is_no_vector(value: float) -> None:
    with pytest.raises(NotFiniteError):
        VectorForm(1, is_normalized=True).shaped(np.array([[value]], dtype=np.float32))


def test_what_half_floats_cannot_hold_is_refused_unless_scaled() -> None:
    large = np.array([[70_000]], dtype=np.float32)
    with pytest.raises(TooLargeError):
        VectorForm(1, is_normalized=False, dtype="<f2").shaped(large)
    assert VectorForm(1, is_normalized=True, dtype="<f2").shaped(large) == b"\x00\x3c"


@pytest.mark.parametrize("mode", [*PoolingMode, None])
def test_a_pool_asks_for_no_more_than_it_needs(mode: PoolingMode | None) -> None:
    hidden = np.arange(20, dtype=np.float32).reshape(10, 2)
    pool, num_needed = Pool(mode, 10), 0
    for start, count in ((0, 4), (4, 5), (9, 1)):
        needed = pool.needed(start, count)
        num_needed += len(needed)
        pool.add(hidden[start : start + count][list(needed)])
    vectors = {PoolingMode.LAST: hidden[-1:], PoolingMode.FIRST: hidden[:1], PoolingMode.MEAN: [[9, 10]], None: hidden}
    assert pool.vectors().tolist() == np.asarray(vectors[mode]).tolist()
    assert num_needed == (10 if mode in {PoolingMode.MEAN, None} else 1)


def test_a_score_is_the_share_of_yes() -> None:
    assert score_of(0, 0) == 0.5
    assert score_of(1, -1) == pytest.approx(1 / (1 + np.exp(-2)))
    assert (score_of(1e6, 0), score_of(0, 1e6)) == (1.0, 0.0)
