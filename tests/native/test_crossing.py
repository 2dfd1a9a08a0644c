"""An mx.array passes through the extension: the proof that it and MLX were built alike."""

import subprocess
import sys

import mlx.core as mx
import numpy as np
import pytest

import native


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16, mx.int8, mx.uint32, mx.int64, mx.bool_])
def test_returns_the_same_values_and_dtype(dtype: mx.Dtype) -> None:
    source = mx.array([[0, 1, 2], [3, 4, 5]]).astype(dtype)

    crossed = native.round_trip(source)

    assert crossed.dtype == dtype
    assert crossed.shape == (2, 3)
    assert mx.array_equal(crossed, source).item()


def test_reads_an_unevaluated_view_in_row_order() -> None:
    source = (mx.arange(12).reshape(3, 4) * 2).T[1:, :]

    crossed = native.round_trip(source)

    assert np.array_equal(np.array(crossed), np.arange(12).reshape(3, 4).T[1:, :] * 2)


def test_returns_a_copy() -> None:
    source = mx.array([1.0, 2.0])
    crossed = native.round_trip(source)

    source[0] = 5.0

    assert crossed.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3)])
def test_keeps_shapes_of_no_and_of_one_element(shape: tuple[int, ...]) -> None:
    assert native.round_trip(mx.zeros(shape)).shape == shape


def test_refuses_what_is_no_array() -> None:
    with pytest.raises(TypeError):
        native.round_trip(np.zeros(3))  # pyright: ignore[reportArgumentType]


def test_the_result_is_an_array_of_mlx_itself() -> None:
    crossed = native.round_trip(mx.array([1.0, 2.0]))

    assert type(crossed) is mx.array
    assert mx.sum(crossed * 2).item() == 6.0


def test_importing_the_package_leaves_mlx_alone() -> None:
    script = "import sys, native, native.blas; native.is_built(); sys.exit('mlx.core' in sys.modules)"

    assert subprocess.run([sys.executable, "-P", "-c", script], timeout=30, check=False).returncode == 0
