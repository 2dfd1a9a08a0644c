"""The end of a process whose mapped file became shorter, and of one that SIGBUS reaches for another reason."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

LAST_WORDS = '{"reason": "CHECKPOINT_CORRUPT"}'
EXIT_CODE = 3
READ = """
import os, sys, mlx.core as mx, native
path, before_end = sys.argv[1:]
mapped = native.map_array(path, 4096, (1 << 16,), mx.float32)
native.end_on_lost_pages({words!r}, {code})
os.truncate(path, 4096)
exec(before_end)
print(mx.sum(mapped).item())
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(bytes(4096 + (4 << 16)))
    return path


def end_of(file: Path, before_end: str) -> tuple[int, str]:
    """Return the exit code and the standard error of a process that reads what its file no longer has."""
    code = READ.format(words=LAST_WORDS, code=EXIT_CODE)
    argv = [sys.executable, "-P", "-c", code, str(file), before_end]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
    return ended.returncode, ended.stderr


def test_a_file_that_became_shorter_ends_the_process_with_its_words(file: Path) -> None:
    assert end_of(file, "") == (EXIT_CODE, f"{LAST_WORDS}\n")


def test_on_a_thread_of_its_own_too(file: Path) -> None:
    read = (
        "import threading, numpy; view = numpy.array(mapped, copy=False)\n"
        "thread = threading.Thread(target=view.sum); thread.start(); thread.join()"
    )
    assert end_of(file, read) == (EXIT_CODE, f"{LAST_WORDS}\n")


def test_on_the_threads_of_kernels_too(file: Path) -> None:
    # Whichever of them is the first to read: 64 KB of the matrix for each row, shared among all.
    read = (
        "from native import dense, kernels; kernels.set_threads(4)\n"
        "mx.eval(dense.linear(mx.ones((1, 64)), mx.reshape(mapped, (1024, 64))))"
    )
    for _ in range(10):
        file.write_bytes(bytes(4096 + (4 << 16)))
        code, words = end_of(file, read)
        assert code == EXIT_CODE
        assert set(words.splitlines()) == {LAST_WORDS}  # of each thread that was as fast


def test_a_signal_that_was_sent_ends_it_as_ever(file: Path) -> None:
    assert end_of(file, "os.kill(os.getpid(), 7 if sys.platform == 'linux' else 10)") == (-signal.SIGBUS, "")


def test_a_page_of_another_file_ends_it_as_ever(file: Path, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(bytes(1 << 16))
    read = (
        f"import mmap; other = open({str(tmp_path / 'other')!r}, 'r+b'); view = mmap.mmap(other.fileno(), 1 << 16)\n"
        "os.truncate(other.fileno(), 0); view[5000]"
    )
    assert end_of(file, read) == (-signal.SIGBUS, "")


def test_what_was_unmapped_is_forgotten(file: Path) -> None:
    assert end_of(file, "del mapped; os._exit(0)") == (0, "")
