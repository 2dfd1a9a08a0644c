"""Checks of what lies under the models: MLX, the BLAS, the native extension, mapped files and the footprint."""

from __future__ import annotations

import importlib.metadata
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import mlx.core as mx

import native
import native.blas
from native.errors import BlasError
from worker.finding import Finding
from worker.footprint import footprint_bytes

MEGABYTE = 1_000_000
SGEMM_SIZE = 1024
SGEMM_REPEATS = 5
# netlib's code does about 5 GFLOP/s on two cores, OpenBLAS hundreds: less than this is no fast BLAS.
SLOW_GFLOPS = 20.0
MAPPED_ELEMENTS = 16 * 2**20
MAPPED_OFFSET = 16 * 1024
MARK = 4711.0
# A mapped array costs page tables and bookkeeping; a copied one costs all of its 67 MB.
MAPPED_GROWTH_LIMIT_BYTES = 12 * MEGABYTE
TOUCHED_BYTES = 64 * 2**20


def check_mlx() -> Finding:
    """Name MLX, its backend and its device."""
    found = f"MLX {importlib.metadata.version('mlx')}, {_backend()}"
    if sys.platform == "darwin" and not mx.metal.is_available():
        return Finding("warn", f"{found}: no Metal", "Run on Apple silicon, outside a virtual machine.")
    return Finding("ok", found)


def check_blas() -> Finding:
    """Measure a float32 product by the BLAS that MLX calls."""
    gflops = _sgemm_gflops()
    speed = f"{gflops:.0f} GFLOP/s for a float32 product of {SGEMM_SIZE} cubed"
    if sys.platform != "linux":
        return Finding("ok", f"MLX's own; {speed} on {_backend()}")
    info = native.blas.loaded()
    if info is None:
        return Finding("warn", f"no OpenBLAS, so MLX's slow own; {speed}", _blas_advice())
    found = f"OpenBLAS for {info.core}, {info.threads} threads; {speed}"
    if gflops < SLOW_GFLOPS:
        return Finding("warn", found, "Unset OPENBLAS_CORETYPE and OPENBLAS_NUM_THREADS if they are set.")
    return Finding("ok", found)


def check_extension() -> Finding:
    """Send an array through the extension and back."""
    if not native.is_built():
        advice = "Install without POMONA_NATIVE=OFF, with a C++ compiler."
        return Finding("warn", "not part of this install: weights are copied, not mapped", advice)
    source = mx.arange(24, dtype=mx.float32)[::2]
    if not mx.array_equal(native.round_trip(source), source).item():
        return Finding("fail", "an array comes back changed", "Install the mlx version that Pomona pins.")
    return Finding("ok", "an array crosses unchanged")


def check_mapping() -> Finding:
    """Map a file as an array, and see what that costs."""
    if not native.is_built():
        return Finding("warn", "not checked: it needs the native extension")
    with tempfile.TemporaryDirectory(prefix="doctor-") as folder:
        path = Path(folder) / "mapped"
        _write_file(path)
        _settle()
        before, begin = footprint_bytes(), time.perf_counter()
        mapped = native.map_array(path, MAPPED_OFFSET, (MAPPED_ELEMENTS,), mx.float32)
        mx.eval(mapped)  # pyright: ignore[reportUnknownMemberType]
        took_us = (time.perf_counter() - begin) * 1e6
        after = footprint_bytes()
        last = mapped[-1].item()
    size = f"{MAPPED_ELEMENTS * 4 / MEGABYTE:.0f} MB"
    if last != MARK:
        return Finding("fail", "a mapped array holds other numbers than its file", "Please report this line.")
    growth = None if before is None or after is None else max(0, after - before)
    grown = "unknown" if growth is None else f"{growth / MEGABYTE:.1f} MB"
    found = f"{size} mapped in {took_us:.0f} us, {native.mapping_kind().replace('_', ' ')}, footprint grows by {grown}"
    if native.mapping_kind() != "copied" and (growth or 0) > MAPPED_GROWTH_LIMIT_BYTES:
        return Finding("warn", found, "The array was copied: loading takes twice the memory. Please report this line.")
    return Finding("ok", found)


def check_footprint() -> Finding:
    """See whether memory that this process takes shows in its footprint."""
    before = footprint_bytes()
    if before is None:
        return Finding("warn", "this system does not tell a process's footprint", "Memory limits will not be kept.")
    taken = bytearray(TOUCHED_BYTES)
    taken[::4096] = b"\1" * len(taken[::4096])
    grown = (footprint_bytes() or 0) - before
    found = f"{before / MEGABYTE:.0f} MB with MLX loaded; {TOUCHED_BYTES / MEGABYTE:.0f} MB taken show as "
    found += f"{grown / MEGABYTE:.0f} MB"
    if not 0.9 < grown / TOUCHED_BYTES < 1.1:
        return Finding("warn", found, "Memory limits may be kept badly. Please report this line.")
    return Finding("ok", found)


def _backend() -> str:
    """Return the backend of the default device with the device's name."""
    if mx.default_device() == mx.Device(mx.cpu):
        return "cpu"
    kind = "metal" if mx.metal.is_available() else "cuda"
    facts: dict[str, Any] = dict(mx.device_info())
    return f"{kind} ({facts.get('device_name', 'unnamed')})"


def _sgemm_gflops() -> float:
    """Measure the best of a few products on the CPU, in 10^9 operations a second."""
    best = float("inf")
    with mx.stream(mx.cpu):
        left, right = (mx.random.normal((SGEMM_SIZE, SGEMM_SIZE)) for _ in range(2))
        mx.eval(left, right)  # pyright: ignore[reportUnknownMemberType]
        for _ in range(SGEMM_REPEATS):
            begin = time.perf_counter()
            mx.eval(left @ right)  # pyright: ignore[reportUnknownMemberType]
            best = min(best, time.perf_counter() - begin)
    return 2 * SGEMM_SIZE**3 / best / 1e9


def _blas_advice() -> str:
    try:
        native.blas.load()
    except BlasError as error:
        return f"{error}; pip install 'pomona[worker]'"
    return "pip install 'pomona[worker]'"


def _write_file(path: Path) -> None:
    """Write a header, then float32 zeros but for the last element, which is `MARK`."""
    with path.open("wb") as file:
        file.write(bytes(MAPPED_OFFSET + 4 * (MAPPED_ELEMENTS - 1)))
        file.write(struct.pack("=f", MARK))


def _settle() -> None:
    """Give back what MLX keeps for reuse, so that it does not hide what comes next."""
    mx.clear_cache()
