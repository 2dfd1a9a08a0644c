"""Gives MLX on Linux a fast BLAS: OpenBLAS from the PyPI wheel `scipy-openblas32`.

MLX's Linux wheel calls the plain names (`cblas_sgemm`, `sgetrf_`) and brings netlib's slow code for them. A library
that is loaded globally before MLX answers first. The wheel's names carry the prefix `scipy_`, so a forwarder of our
own, `libpomona_blas` (`src/blas.S`), stands between: the plain name jumps to the prefixed one.

Everything here is ctypes. On macOS MLX calls Accelerate, and nothing is loaded.
"""

import ctypes
import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from native.errors import BlasError, BlasMissing, BlasTooLate, BlasUnloadable

__all__ = ["BlasError", "BlasInfo", "BlasMissing", "BlasTooLate", "BlasUnloadable", "load", "loaded"]

WHEEL = "scipy-openblas32"
FORWARDER = "libpomona_blas"


@dataclass(frozen=True, slots=True)
class BlasInfo:
    """The BLAS that MLX calls in this process.

    Attributes:
        library: the wheel it comes from.
        config: what OpenBLAS says of its build, its version first.
        core: the processor whose kernels it chose (the environment's `OPENBLAS_CORETYPE` overrides its choice).
        threads: how many threads a call may use.
    """

    library: str
    config: str
    core: str
    threads: int


def load(threads: int | None = None) -> BlasInfo | None:
    """Load OpenBLAS so that MLX, imported after it, calls it.

    Args:
        threads: how many threads a call may use; None leaves it to OpenBLAS (`OPENBLAS_NUM_THREADS`, or one a core).

    Returns:
        What was loaded; None on macOS, where MLX needs no other BLAS.

    Raises:
        BlasTooLate: `mlx.core` is already imported.
        BlasMissing: the wheel or the forwarder is not installed.
        BlasUnloadable: one of them cannot be loaded.
    """
    if sys.platform != "linux":
        return None
    if "mlx.core" in sys.modules:
        raise BlasTooLate
    openblas_path, forwarder_path = _openblas_path(), _forwarder_path()
    openblas = _open(openblas_path, WHEEL)
    _open(forwarder_path, FORWARDER)
    if threads is not None:
        openblas.scipy_openblas_set_num_threads(ctypes.c_int(threads))
    return _info(openblas)


def loaded() -> BlasInfo | None:
    """Tell which BLAS `load` gave MLX in this process; None where it gave none."""
    if sys.platform != "linux":
        return None
    try:
        ctypes.CDLL(str(_forwarder_path()), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        return _info(ctypes.CDLL(str(_openblas_path()), mode=os.RTLD_NOLOAD | os.RTLD_NOW))
    except (BlasMissing, OSError):
        return None


def _openblas_path() -> Path:
    # The wheel's own import would load the library as well, but keeps it in a global of its own.
    spec = importlib.util.find_spec("scipy_openblas32")
    folders = spec.submodule_search_locations if spec is not None else None
    for folder in folders or ():
        for path in sorted(Path(folder, "lib").glob("libscipy_openblas*.so")):
            return path
    raise BlasMissing(WHEEL)


def _forwarder_path() -> Path:
    # In an editable install the package has two folders: the checkout, and the one the build went to.
    for folder in sys.modules["native"].__path__:
        path = Path(folder, f"{FORWARDER}.so")
        if path.is_file():
            return path
    raise BlasMissing(FORWARDER)


def _open(path: Path, part: str) -> ctypes.CDLL:
    # RTLD_NOW: a name that the wheel lacks is an error here, and not a crash in the first call.
    try:
        return ctypes.CDLL(str(path), mode=os.RTLD_GLOBAL | os.RTLD_NOW)
    except OSError as error:
        raise BlasUnloadable(part) from error


def _info(openblas: ctypes.CDLL) -> BlasInfo:
    openblas.scipy_openblas_get_config.restype = ctypes.c_char_p
    openblas.scipy_openblas_get_corename.restype = ctypes.c_char_p
    return BlasInfo(
        library=WHEEL,
        config=openblas.scipy_openblas_get_config().decode(),
        core=openblas.scipy_openblas_get_corename().decode(),
        threads=openblas.scipy_openblas_get_num_threads(),
    )
