"""Slots that threads fill from files."""

import errno
import gc
import mmap
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from native.errors import FileUnopened, ReadRejected, ShapeRejected, SlotBusy, SlotStale
from native.slab import Segment, Slab
from tests.support.threads import only_where_told, threads
from tests.support.waiting import wait_until

LONGEST_S = 20.0
HALF_BYTES = 1 << 17


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a file with every half float there is, after 100 bytes of something else."""
    path = tmp_path / "source"
    path.write_bytes(bytes(100) + np.arange(1 << 16, dtype=np.uint16).tobytes())
    return path


@pytest.mark.parametrize("bypasses_cache", [False, True])
def test_slots_hold_what_was_read_into_them(source: Path, bypasses_cache: bool) -> None:
    slab = Slab(3, num_threads=2, bypasses_cache=bypasses_cache)
    words, bytes_ = slab.add_region((16, 8), mx.uint32), slab.add_region((50,), mx.uint8)
    file = slab.open(source)
    for slot in (2, 0):
        read: list[Segment] = [(words, file, 100 + 512 * slot, 512, "none"), (bytes_, file, 7 * slot, 50, "none")]
        assert slab.wait(slot, slab.fill(slot, [read]), LONGEST_S) == ("ready", 0)
    content = source.read_bytes()
    for slot in (2, 0):
        assert np.array(slab.array(words)[slot]).tobytes() == content[100 + 512 * slot :][:512]
        assert np.array(slab.array(bytes_)[slot]).tobytes() == content[7 * slot :][:50]
    assert not mx.any(slab.array(words)[1]).item()
    slab.close()


@pytest.mark.parametrize(("dtype", "conversion"), [(mx.float16, "from_float16"), (mx.bfloat16, "from_bfloat16")])
def test_every_half_float_becomes_what_mlx_makes_of_it(source: Path, dtype: mx.Dtype, conversion: str) -> None:
    slab = Slab(1)
    region = slab.add_region((1 << 16,), mx.float32)
    segment: Segment = (region, slab.open(source), 100, HALF_BYTES, conversion)  # pyright: ignore[reportAssignmentType]
    assert slab.wait(0, slab.fill(0, [[segment]]), LONGEST_S) == ("ready", 0)
    halves = mx.array(np.arange(1 << 16, dtype=np.uint16)).view(dtype)
    found, expected = slab.array(region)[0], halves.astype(mx.float32)
    assert mx.array_equal(found, expected, equal_nan=True)
    is_number = ~mx.isnan(expected)
    assert mx.array_equal(
        mx.where(is_number, found.view(mx.uint32), 0), mx.where(is_number, expected.view(mx.uint32), 0)
    )
    slab.close()


def test_an_array_computes_with_what_its_slots_hold_when_it_is_evaluated(source: Path) -> None:
    slab = Slab(2)
    region = slab.add_region((64,), mx.uint16)
    array, file = slab.array(region), slab.open(source)
    sums: list[int] = []
    for first in (0, 64, 128):
        slab.wait(1, slab.fill(1, [[(region, file, 100 + 2 * first, 128, "none")]]), LONGEST_S)
        sums.append(int(np.array(mx.sum(array[1].astype(mx.int32)))))
    assert sums == [sum(range(first, first + 64)) for first in (0, 64, 128)]
    slab.close()


def test_the_end_of_a_file_is_told_and_the_slot_can_be_used_again(source: Path) -> None:
    slab = Slab(1)
    region, file = slab.add_region((1000,), mx.uint8), slab.open(source)
    content = source.read_bytes()
    source.write_bytes(content[:1500])
    failing = slab.fill(0, [[(region, file, 1000, 1000, "none")]])
    assert slab.wait(0, failing, LONGEST_S) == ("failed", errno.ENODATA)
    assert slab.state(0) == "idle"
    with pytest.raises(SlotStale):
        slab.lease(0, failing)
    source.write_bytes(content)
    assert slab.wait(0, slab.fill(0, [[(region, file, 1000, 1000, "none")]]), LONGEST_S) == ("ready", 0)
    assert np.array(slab.array(region)[0]).tobytes() == content[1000:2000]
    slab.close()


def test_a_leased_slot_is_not_filled(source: Path) -> None:
    slab = Slab(1)
    read: list[list[Segment]] = [[(slab.add_region((8,), mx.uint8), slab.open(source), 0, 8, "none")]]
    first = slab.fill(0, read)
    slab.wait(0, first, LONGEST_S)
    slab.lease(0, first)
    assert slab.state(0) == "leased"
    with pytest.raises(SlotBusy) as refused:
        slab.fill(0, read)
    assert refused.value.slot == 0
    slab.release(0, first)
    second = slab.fill(0, read)
    assert slab.wait(0, first, LONGEST_S) == ("stale", 0)
    assert slab.wait(0, second, LONGEST_S) == ("ready", 0)
    slab.close()


@only_where_told
def test_closing_ends_the_threads_and_frees_the_memory(source: Path) -> None:
    mx.eval(mx.zeros((1,)) + 1)
    before = threads()
    slab = Slab(4, num_threads=3)
    region, file = slab.add_region((1 << 20,), mx.uint8), slab.open(source)
    assert not threads() - before
    slab.wait(0, slab.fill(0, [[(region, file, 0, 1 << 20, "none")]]), LONGEST_S)
    assert len(threads() - before) == 3
    slab.close()
    slab.close()
    wait_until(lambda: not threads() - before)
    with pytest.raises(ReadRejected, match="no more is read"):
        slab.fill(0, [[(region, file, 0, 1 << 20, "none")]])


@only_where_told
def test_a_slab_that_nobody_closes_ends_its_threads(source: Path) -> None:
    before = threads()
    slab = Slab(1, num_threads=2)
    slab.fill(0, [[(slab.add_region((8,), mx.uint8), slab.open(source), 0, 8, "none")]])
    del slab
    gc.collect()
    wait_until(lambda: not threads() - before)


@only_where_told
def test_memory_goes_with_the_slab_and_its_last_array() -> None:
    def addresses() -> int:
        return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE

    before, num_bytes = addresses(), 1 << 32
    slab = Slab(4)
    array = slab.array(slab.add_region((1 << 30,), mx.uint8))
    assert addresses() > before + num_bytes // 2
    slab.close()
    del slab
    gc.collect()
    assert array.shape == (4, 1 << 30)
    assert addresses() > before + num_bytes // 2
    del array
    gc.collect()
    assert addresses() < before + num_bytes // 2


def test_counts_all_the_bytes_that_it_may_take() -> None:
    slab = Slab(10, num_threads=2)
    read_through = 2 << 20
    assert slab.num_bytes == read_through
    slab.add_region((mmap.PAGESIZE,), mx.uint8)
    page = mmap.PAGESIZE
    assert slab.num_bytes == read_through + page + 10 * page
    before = mx.get_active_memory()
    slab.add_region((1 << 20,), mx.uint32)
    assert mx.get_active_memory() == before


def test_refuses_what_makes_no_sense(source: Path) -> None:
    slab = Slab(2)
    region, file = slab.add_region((8,), mx.float32), slab.open(source)
    right: Segment = (region, file, 0, 32, "none")
    for reads in (
        [],
        [[]],
        [[right] * 9],
        [[(region + 1, file, 0, 32, "none")]],
        [[(region, file + 1, 0, 32, "none")]],
        [[(region, file, 0, 31, "none")]],
        [[(region, file, 0, 32, "from_bfloat16")]],
        [[(region, file, -4, 32, "none")]],
        [[(region, file, 0, 32, "from_float64")]],
    ):
        with pytest.raises(ReadRejected):
            slab.fill(0, reads)  # pyright: ignore[reportArgumentType]
    for slot in (-1, 2):
        with pytest.raises(ReadRejected):
            slab.fill(slot, [[right]])
    with pytest.raises(ReadRejected):
        slab.array(1)
    with pytest.raises(ShapeRejected):
        slab.add_region((0,), mx.uint8)
    with pytest.raises(ReadRejected):
        Slab(0)
    with pytest.raises(ReadRejected):
        Slab(1, num_threads=65)
    slab.close()


def test_a_file_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    slab = Slab(1)
    for path, code in ((tmp_path / "none", errno.ENOENT), (tmp_path, errno.EINVAL)):
        with pytest.raises(FileUnopened) as refused:
            slab.open(path)
        assert refused.value.code == code
