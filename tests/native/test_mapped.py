"""Arrays whose elements are a range of a file."""

import errno
import gc
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

import native

HEADER_BYTES = 4096
in_place = pytest.mark.skipif(mx.metal.is_available() or mx.cuda.is_available(), reason="MLX's GPU builds may copy")


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    """Return a file of 64 KiB of random bytes."""
    path = tmp_path / "pack"
    path.write_bytes(np.random.default_rng(0).bytes(65536))
    return path


def words(path: Path, offset: int, count: int) -> np.ndarray:
    """Read uint32 words by the other way there is."""
    return np.array(np.memmap(path, dtype=np.uint32, mode="r", offset=offset, shape=(count,)))


@pytest.mark.parametrize("offset", [8, 12, HEADER_BYTES - 4, HEADER_BYTES, HEADER_BYTES + 4, 3 * HEADER_BYTES])
def test_is_bit_equal_with_a_read_of_the_file(pack: Path, offset: int) -> None:
    mapped = native.map_array(pack, offset, (10, 300), mx.uint32)

    assert mapped.shape == (10, 300)
    assert mapped.dtype == mx.uint32
    assert np.array_equal(np.array(mapped).ravel(), words(pack, offset, 3000))


def test_reaches_the_last_byte_of_the_file(pack: Path) -> None:
    mapped = native.map_array(str(pack), 65536 - 4, (1,), mx.uint32)

    assert mapped.item() == words(pack, 65536 - 4, 1)[0]


def test_computes_like_the_same_array_in_memory(pack: Path) -> None:
    values = np.random.default_rng(1).standard_normal((64, 128), dtype=np.float32)
    pack.write_bytes(bytes(64) + values.tobytes())
    mapped = native.map_array(pack, 64, (64, 128), mx.float32)

    assert mx.array_equal(mapped @ mapped.T, mx.array(values) @ mx.array(values).T).item()


def test_reads_bytes_at_an_odd_offset(pack: Path) -> None:
    mapped = native.map_array(pack, 4097, (5,), mx.uint8)

    assert np.array(mapped).tobytes() == pack.read_bytes()[4097:4102]


@pytest.mark.parametrize(("shape", "count"), [((), 1), ((0,), 0), ((3, 0), 0)])
def test_maps_a_scalar_and_nothing(pack: Path, shape: tuple[int, ...], count: int) -> None:
    mapped = native.map_array(pack, 8, shape, mx.uint32)

    assert mapped.shape == shape
    assert mapped.size == count


def test_outlives_the_file(pack: Path) -> None:
    expected = words(pack, HEADER_BYTES, 1000)
    mapped = native.map_array(pack, HEADER_BYTES, (1000,), mx.uint32)

    pack.unlink()

    assert np.array_equal(np.array(mapped), expected)


def test_a_view_keeps_the_mapping(pack: Path) -> None:
    mapped = native.map_array(pack, HEADER_BYTES, (1000,), mx.uint32)
    view = mapped[500:].reshape(50, 10)
    mx.eval(view)

    del mapped
    gc.collect()

    assert np.array_equal(np.array(view).ravel(), words(pack, HEADER_BYTES + 2000, 500))


@in_place
def test_many_arrays_share_a_file_and_leave_nothing_behind(pack: Path) -> None:
    arrays = [native.map_array(pack, offset, (64,), mx.uint32) for offset in range(8, 65536 - 256, 32)]
    same = [np.array_equal(np.array(array), words(pack, 8 + 32 * i, 64)) for i, array in enumerate(arrays)]

    assert all(same)
    assert mappings_of(pack) == len(arrays)
    arrays.clear()
    gc.collect()
    assert mappings_of(pack) == 0


def mappings_of(path: Path) -> int:
    """Count the mappings of a file in this process (Linux only)."""
    return Path("/proc/self/maps").read_text().count(str(path))


@in_place
def test_takes_no_memory_of_mlx(pack: Path) -> None:
    before = mx.get_active_memory()

    mapped = native.map_array(pack, HEADER_BYTES, (8192,), mx.uint32)

    assert native.mapping_kind() == "in_place"
    assert mx.get_active_memory() == before
    assert mapped.nbytes == 32768


def test_writing_to_an_array_never_writes_to_its_file(pack: Path) -> None:
    before = pack.read_bytes()
    mapped = native.map_array(pack, HEADER_BYTES, (1000,), mx.uint32)

    mapped[0] = 7
    mapped += 1
    mx.eval(mapped)

    assert mapped[0].item() == 8
    assert pack.read_bytes() == before


def test_an_operation_does_not_take_the_mapping_over(pack: Path) -> None:
    result = mx.abs(native.map_array(pack, HEADER_BYTES, (1000,), mx.int32) * 2)
    mx.eval(result)

    assert result.shape == (1000,)


@pytest.mark.parametrize(
    ("offset", "shape"),
    [
        (0, (1,)),
        (4, (1,)),
        (-4, (1,)),
        (8, (16384,)),
        (65536, (1,)),
        (65532, (2,)),
        (2**62, (1,)),
        (8, (2**31 - 1, 2**29)),
    ],
)
def test_refuses_a_range_outside_the_file(pack: Path, offset: int, shape: tuple[int, ...]) -> None:
    with pytest.raises(native.RangeOutsideFile) as caught:
        native.map_array(pack, offset, shape, mx.uint32)

    assert caught.value.offset == offset
    assert caught.value.num_bytes == 4 * int(np.prod(shape))
    assert caught.value.file_bytes == 65536


@pytest.mark.parametrize("offset", [9, 10, 4097])
def test_refuses_an_offset_within_an_element(pack: Path, offset: int) -> None:
    with pytest.raises(native.OffsetMisaligned) as caught:
        native.map_array(pack, offset, (1,), mx.uint32)

    assert (caught.value.offset, caught.value.item_bytes) == (offset, 4)


@pytest.mark.parametrize("shape", [(-1,), (2**31,), (2**31 - 1, 2**31 - 1, 4)])
def test_refuses_a_shape_that_no_array_has(pack: Path, shape: tuple[int, ...]) -> None:
    with pytest.raises(native.ShapeRejected):
        native.map_array(pack, 8, shape, mx.uint32)


def test_refuses_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(native.FileUnreadable) as caught:
        native.map_array(tmp_path / "absent", 8, (1,), mx.uint32)

    assert caught.value.code == errno.ENOENT


def test_refuses_a_folder(tmp_path: Path) -> None:
    with pytest.raises(native.FileUnreadable):
        native.map_array(tmp_path, 8, (1,), mx.uint32)


@pytest.mark.parametrize("offset", [0, 9, 10**6])
def test_no_message_names_the_path(pack: Path, offset: int) -> None:
    with pytest.raises(native.MappingError) as caught:
        native.map_array(pack, offset, (1,), mx.uint32)

    assert pack.name not in str(caught.value)
    assert "/" not in str(caught.value)
