"""The BLAS binding, each time in a process of its own: which BLAS MLX calls is settled when it is loaded."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="on macOS MLX calls Accelerate and nothing is loaded")

PRODUCT = """
import json, native.blas
info = native.blas.load()
import mlx.core as mx, numpy as np
mx.set_default_device(mx.cpu)
random = np.random.default_rng(0)
left = random.standard_normal((300, 200)).astype(np.float32)
right = random.standard_normal((200, 100)).astype(np.float32)
exact = left.astype(np.float64) @ right.astype(np.float64)
error = np.abs(np.array(mx.array(left) @ mx.array(right)) - exact).max()
print(json.dumps({"error": float(error), "library": info.library, "core": info.core, "config": info.config}))
"""

LINEAR_ALGEBRA = """
import json, native.blas
native.blas.load()
import mlx.core as mx, numpy as np
mx.set_default_device(mx.cpu)
random = np.random.default_rng(0)
square = random.standard_normal((24, 24)).astype(np.float32)
positive = square @ square.T + 24 * np.eye(24, dtype=np.float32)
hermitian = (square + square.T + 1j * (square - square.T)).astype(np.complex64)
lower = np.tril(square) + 24 * np.eye(24, dtype=np.float32)
q, r = (np.array(part) for part in mx.linalg.qr(mx.array(square)))
u, s, vt = (np.array(part) for part in mx.linalg.svd(mx.array(square)))
found = {
    "inverse": (mx.linalg.inv(mx.array(square)), np.linalg.inv(square)),
    "triangular inverse": (mx.linalg.tri_inv(mx.array(lower)), np.linalg.inv(lower)),
    "cholesky": (mx.linalg.cholesky(mx.array(positive)), np.linalg.cholesky(positive)),
    "symmetric eigenvalues": (mx.linalg.eigvalsh(mx.array(positive)), np.linalg.eigvalsh(positive)),
    "hermitian eigenvalues": (mx.linalg.eigvalsh(mx.array(hermitian)), np.linalg.eigvalsh(hermitian)),
    "trace by eigenvalues": (mx.sum(mx.linalg.eigvals(mx.array(square))), np.trace(square)),
    "solution": (mx.linalg.solve(mx.array(square), mx.array(square @ square)), square),
    "singular values": (s, np.linalg.svd(square, compute_uv=False)),
    "svd product": (u @ np.diag(s) @ vt, square),
    "qr product": (q @ r, square),
    "complex product": (mx.array(hermitian) @ mx.array(hermitian), hermitian @ hermitian),
}
def error_of(got, right):
    return float(np.abs(np.array(got) - right).max() / np.abs(right).max())
errors = {name: error_of(*pair) for name, pair in found.items()}
print(json.dumps(errors))
"""

THREADS = """
import json, sys, native.blas
before = native.blas.loaded()
first = native.blas.load(1)
again = native.blas.load(2)
import mlx.core as mx
print(json.dumps([before, first.threads, again.threads, native.blas.loaded().threads]))
"""

TOO_LATE = """
import json, mlx.core, native.blas
try:
    native.blas.load()
except native.blas.BlasTooLate as error:
    print(json.dumps([str(error), native.blas.loaded()]))
"""

MISSING = """
import json, sys, native.blas
sys.modules["native"].__path__ = []
try:
    native.blas.load()
except native.blas.BlasMissing as error:
    print(json.dumps([error.part, str(error)]))
"""

BINDINGS = "import native.blas; native.blas.load(); import mlx.core"


def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a new interpreter."""
    command = [sys.executable, "-P", "-c", script]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=50, check=True)


def answer(script: str, **environment: str) -> Any:
    """Run a script and read the JSON that it prints."""
    return json.loads(run(script, **environment).stdout)


def test_a_product_is_right_and_the_library_is_named() -> None:
    found = answer(PRODUCT)

    assert found["error"] < 1e-4
    assert found["library"] == "scipy-openblas32"
    assert found["config"].startswith("OpenBLAS 0.3.")
    assert found["core"] in found["config"]


def test_linear_algebra_is_right() -> None:
    errors = answer(LINEAR_ALGEBRA)

    assert {name: error for name, error in errors.items() if error > 1e-4} == {}


def test_sets_the_number_of_threads() -> None:
    assert answer(THREADS) == [None, 1, 2, 2]


def test_refuses_once_mlx_is_loaded() -> None:
    assert answer(TOO_LATE) == ["mlx.core is already imported, so its BLAS can no longer be chosen", None]


def test_says_which_part_is_not_installed() -> None:
    assert answer(MISSING) == ["libpomona_blas", "libpomona_blas is not installed"]


def test_mlx_calls_the_forwarder_for_every_blas_name_it_needs() -> None:
    # The dynamic linker itself reports which library answers each name; with LD_BIND_NOW it does so for all at once.
    lines = run(BINDINGS, LD_DEBUG="bindings", LD_BIND_NOW="1").stderr.splitlines()
    bindings = [line for line in lines if "binding file" in line and "libmlx.so" in line.split(" to ")[0]]
    slow = [line for line in bindings if any(name in line.split(" to ")[1] for name in ("libblas-", "liblapack-"))]
    fast = [line for line in bindings if "libpomona_blas" in line]

    assert slow == []
    assert any("`cblas_sgemm'" in line for line in fast)
    assert any("`sgetrf_'" in line for line in fast)
