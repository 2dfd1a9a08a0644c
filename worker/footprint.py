"""How much memory this process takes from the machine.

Never its resident set, which counts shared pages and misses the GPU's.
"""

import asyncio
import ctypes
import os
import sys
from pathlib import Path

SMAPS_ROLLUP = Path("/proc/self/smaps_rollup")
# struct rusage_info_v0 of <sys/resource.h>: 16 bytes of UUID, then 64-bit counters of which ri_phys_footprint is the
# eighth.
RUSAGE_INFO_V0 = 0
RUSAGE_UUID_BYTES = 16
RUSAGE_COUNTERS = 10
PHYS_FOOTPRINT_INDEX = 7


MEASURE_INTERVAL_S = 1.0


class FootprintGauge:
    """The last measurement of this process, taken beside the event loop: one of many gigabytes takes its time.

    Attributes:
        bytes: 0 until the first measurement, and where the system does not say.
    """

    def __init__(self) -> None:
        self.bytes = 0

    async def run(self) -> None:
        """Measure again and again until cancelled."""
        while True:
            self.bytes = await asyncio.to_thread(footprint_bytes) or 0
            await asyncio.sleep(MEASURE_INTERVAL_S)


def footprint_bytes() -> int | None:
    """Measure this process.

    Returns:
        Bytes: on Linux its proportional set size, of which pages that n processes share count one n-th; on macOS
            `phys_footprint`, which counts wired GPU memory. None where the system does not say.
    """
    if sys.platform == "darwin":
        return _phys_footprint()
    return _proportional_set_size()


def _proportional_set_size() -> int | None:
    """Read the sum of PSS and swapped PSS (proc(5))."""
    try:
        lines = SMAPS_ROLLUP.read_text().splitlines()
    except OSError:
        return None
    kibibytes = [int(line.split()[1]) for line in lines if line.startswith(("Pss:", "SwapPss:"))]
    return sum(kibibytes) * 1024 if kibibytes else None


def _phys_footprint() -> int | None:
    """Ask `proc_pid_rusage` of libproc, as <libproc.h> declares it."""
    try:
        ask = ctypes.CDLL("/usr/lib/libproc.dylib", use_errno=True).proc_pid_rusage
    except (OSError, AttributeError):
        return None
    ask.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
    ask.restype = ctypes.c_int
    words = RUSAGE_UUID_BYTES // 8
    counters = (ctypes.c_uint64 * (words + RUSAGE_COUNTERS))()
    if ask(os.getpid(), RUSAGE_INFO_V0, ctypes.byref(counters)) != 0:
        return None
    return counters[words + PHYS_FOOTPRINT_INDEX]
