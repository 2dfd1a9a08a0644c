"""Which pages of a file the system keeps in memory, by mincore; Linux and macOS."""

import ctypes
import mmap
import os
from pathlib import Path

PAGE_BYTES = mmap.PAGESIZE


def forget(file: Path) -> None:
    """Let the system let go of a file's pages (Linux)."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def pages_in_memory(file: Path) -> list[bool]:
    """Tell of each page of a file whether it is in memory."""
    size = file.stat().st_size
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    with file.open("rb") as opened:
        start = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, opened.fileno(), 0)
    pages = ctypes.create_string_buffer(-(-size // PAGE_BYTES))
    try:
        if libc.mincore(start, size, pages):
            raise OSError(ctypes.get_errno(), "mincore")
    finally:
        libc.munmap(start, size)
    return [bool(page & 1) for page in pages.raw]
