import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.footprint import footprint_bytes, parse_rollup

MIB = 1 << 20


FILL = f"""
import os
from gateway.footprint import footprint_bytes
before = footprint_bytes(os.getpid())
filled = bytearray(os.urandom({64 * MIB}))
print(footprint_bytes(os.getpid()) - before)
"""
# Run in a process of its own: in one that has lived, memory that others gave back is used first.


def test_memory_that_a_process_fills_is_in_its_footprint() -> None:
    ran = subprocess.run([sys.executable, "-c", FILL], capture_output=True, text=True, check=True, timeout=60)
    assert 60 * MIB < int(ran.stdout) < 200 * MIB


def test_clean_pages_of_a_mapped_file_are_not_in_it(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(os.urandom(64 * MIB))
    before = footprint_bytes(os.getpid())
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        touched = sum(mapping[offset] for offset in range(0, len(mapping), 4096))
        after = footprint_bytes(os.getpid())
    assert before is not None
    assert after is not None
    assert touched > 0
    assert after - before < 16 * MIB


def test_a_process_that_is_gone_has_none() -> None:
    assert footprint_bytes(2**22 + 1) is None


def test_a_rollup_counts_private_shared_and_swapped_pages() -> None:
    text = "00400000-7fff ---p [rollup]\nRss: 900 kB\nPss: 800 kB\n"
    text += "Pss_Anon: 1 kB\nPss_File: 5 kB\nPss_Shmem: 2 kB\nSwapPss: 4 kB\n"
    assert parse_rollup(text) == 7 * 1024


def test_a_rollup_without_those_lines_tells_nothing() -> None:
    assert parse_rollup("Rss: 900 kB\n") is None


@pytest.mark.metal
@pytest.mark.skipif(sys.platform != "darwin", reason="reads the footprint that macOS keeps")
def test_macos_gives_the_footprint_of_this_process() -> None:
    footprint = footprint_bytes(os.getpid())
    assert footprint is not None
    assert footprint > MIB
