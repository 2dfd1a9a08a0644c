"""Starts each server with the same model and number of threads, waits until it serves, and stops it."""

import contextlib
import json
import os
import re
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from pomona.v1 import model_pb2, model_pb2_grpc

from bench import report
from tests.support.served import served

MODEL = "smollm2"
HOST = "127.0.0.1"
START_LIMIT_S = 180.0
STOP_LIMIT_S = 20.0
LOAD_LIMIT_S = 120.0
POLL_S = 0.1
_MLX_LM = """
import sys
if sys.argv.pop(1) == "openblas":
    import native.blas
    native.blas.load(int(sys.argv[1]))
del sys.argv[1]
from mlx_lm.server import main
main()
"""


@contextmanager
def pomona(checkpoint: Path, threads: int, rows: int, changes: Mapping[str, Any]) -> Generator[dict[str, Any]]:
    """Run `pomona serve` with one model, loaded.

    Args:
        checkpoint: of the model.
        threads: that compute.
        rows: requests that run side by side.
        changes: of its settings, by dotted name: `models.` for the model's, others as in the settings file.

    Returns:
        What `bench.load.targets.make` reads, and the log's last lines as `log`.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        file = Path(folder, "settings.toml")
        file.write_text(settings(checkpoint, threads, rows, changes))
        with served("--settings", str(file), "--log-level", "warning") as server:
            with grpc.insecure_channel(server.address) as channel:
                request = model_pb2.LoadModelRequest(model=MODEL)
                model_pb2_grpc.ModelServiceStub(channel).LoadModel(request, timeout=LOAD_LIMIT_S)
            yield {"kind": "grpc", "address": server.address, "model": MODEL}
            server.stop()


def settings(checkpoint: Path, threads: int, rows: int, changes: Mapping[str, Any]) -> str:
    """Return a settings file; JSON's numbers and plain strings are TOML's too."""
    wanted: dict[str, dict[str, Any]] = {
        "models": {"name": MODEL, "checkpoint": str(checkpoint), "max_batch_rows": rows},
        "worker": {"compute_threads": threads},
    }
    for name, value in changes.items():
        section, _, key = name.partition(".")
        wanted.setdefault(section, {})[key] = value
    lines: list[str] = []
    for section, values in wanted.items():
        lines.append("[[models]]" if section == "models" else f"[{section}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    return "\n".join(lines)


def parse_change(text: str) -> tuple[str, Any]:
    """Read `SECTION.KEY=VALUE`; a value that is no JSON is a string.

    Raises:
        ValueError: it has no such form.
    """
    found = re.fullmatch(r"([a-z_]+\.[a-z_]+)=(.*)", text)
    if not found:
        raise ValueError(f"{text!r} is not SECTION.KEY=VALUE")
    name, value = found.groups()
    with contextlib.suppress(ValueError):
        return name, json.loads(value)
    return name, value


@contextmanager
def llama_server(program: Path, gguf: Path, threads: int, slots: int, context_tokens: int) -> Generator[dict[str, Any]]:
    """Run llama.cpp's server with `slots` streams of `context_tokens` each."""
    command = [str(program), "--model", str(gguf), "--threads", str(threads), "--threads-batch", str(threads)]
    command += ["--parallel", str(slots), "--ctx-size", str(slots * context_tokens)]
    with _http_server(command, {}) as address:
        yield {"kind": "llama", "address": address}


@contextmanager
def mlx_lm_server(python: str, folder: Path, threads: int, *, openblas: bool) -> Generator[dict[str, Any]]:
    """Run mlx-lm's server on a folder that `bench.mlx_folder` wrote."""
    blas = "openblas" if openblas else "none"
    command = [python, "-P", "-c", _MLX_LM, blas, str(threads), "--model", str(folder), "--log-level", "WARNING"]
    environment = {"OPENBLAS_NUM_THREADS": str(threads), "PYTHONPATH": str(report.ROOT), "HF_HUB_OFFLINE": "1"}
    with _http_server(command, environment) as address:
        yield {"kind": "mlx", "address": address}


def llama_version(program: Path) -> str:
    """Return what llama.cpp's server says of its build."""
    done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30, check=False)
    return " ".join((done.stdout + done.stderr).split())


def mlx_lm_version(python: str) -> str | None:
    """Return the version of mlx-lm that an interpreter has; None: it has none."""
    program = "import importlib.metadata as m, mlx_lm; print(m.version('mlx-lm'))"
    done = subprocess.run([python, "-P", "-c", program], capture_output=True, text=True, timeout=120, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


@contextmanager
def _http_server(command: Iterable[str], environment: Mapping[str, str]) -> Generator[str]:
    """Run a server that takes --host and --port and answers at /health."""
    port = _free_port()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [*command, "--host", HOST, "--port", str(port)],
            stdout=log,
            stderr=log,
            env={**os.environ, **environment},
            cwd=tempfile.gettempdir(),
        )
        try:
            if not _is_healthy(process, port):
                log.seek(0)
                raise SystemExit(f"the server does not start: {log.read()[-2000:].decode(errors='replace')}")
            yield f"{HOST}:{port}"
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_LIMIT_S)
            process.kill()
            process.wait()


def _is_healthy(process: "subprocess.Popen[bytes]", port: int) -> bool:
    """Wait until the server answers; False: it ended, or the time is over."""
    end = time.monotonic() + START_LIMIT_S
    while process.poll() is None and time.monotonic() < end:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://{HOST}:{port}/health", timeout=5) as answer,
        ):
            if answer.status == 200:
                return True
        time.sleep(POLL_S)
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]
