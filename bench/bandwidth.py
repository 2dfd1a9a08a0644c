"""How fast this machine reads memory: the bound of decoding, which reads every weight for every token.

Threads search their own part of a buffer beyond all caches for a byte that is not in it: the C library's search reads
as wide as the processor can, and writes nothing.
"""

import ctypes
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

BUFFER_BYTES = 1 << 29
FILLING = b"\x01"
WANTED = 2
ROUNDS = 7


def read_gb_per_s(threads: int, rounds: int = ROUNDS) -> list[float]:
    """Measure.

    Args:
        threads: that read, each its own part.
        rounds: samples.

    Returns:
        GB (10^9 bytes) a second of all threads together, for each round.
    """
    # Written, because pages that never were are all one page of zeros.
    buffer = bytearray(FILLING) * BUFFER_BYTES
    view = (ctypes.c_char * BUFFER_BYTES).from_buffer(buffer)
    part = BUFFER_BYTES // threads
    starts = [ctypes.addressof(view) + index * part for index in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        _read(pool, starts, part)
        return [part * threads / _read(pool, starts, part) / 1e9 for _ in range(rounds)]


def _read(pool: ThreadPoolExecutor, starts: Sequence[int], part: int) -> float:
    """Read all parts at once and return the seconds that it took."""
    search = _search()
    began = time.perf_counter()
    found = list(pool.map(lambda start: search(start, WANTED, part), starts))
    seconds = time.perf_counter() - began
    if any(found):
        raise RuntimeError("the buffer has a byte that it should not")
    return seconds


def _search() -> "ctypes._NamedFuncPointer":  # pyright: ignore[reportPrivateUsage]
    search = ctypes.CDLL("/usr/lib/libSystem.B.dylib" if sys.platform == "darwin" else None).memchr
    search.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
    search.restype = ctypes.c_void_p
    return search
