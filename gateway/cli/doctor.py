"""`doctor`: what this machine can do, one check a line."""

import asyncio
import json
import platform
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version as installed_version
from typing import Annotated

import typer
from rich.text import Text

from gateway.cli import output
from gateway.cli.doctor_server import check_server
from gateway.cli.finding import Finding
from gateway.cli.verb import verb
from gateway.exit_words import signal_name
from gateway.process import ChildExit, Command, ProcessError, run_once
from gateway.settings import process_environment

# Each in a process of its own, because this one never imports MLX; `worker/doctor.py` holds them.
WORKER_CHECKS = ("mlx", "blas", "extension", "mapping", "footprint", "parity", "speed")
CHECK_TIMEOUT_S = 180.0
MAX_OUTPUT_BYTES = 64 * 1024
MARKS = {"ok": ("ok", "green"), "warn": ("warn", "yellow"), "fail": ("FAIL", "bold red")}
REPORT = "Please report this line."
NOBODY_RAN_IT = "nothing of Pomona has been run on Apple hardware by its authors"


@verb
def doctor(
    *, as_json: Annotated[bool, typer.Option("--json", help="Print one object a check, a line each.")] = False
) -> None:
    """Check what this machine can do, and how fast.

    Each line says ok, warn (it runs, but slower or with less than it could)
    or FAIL, and what to do about it. The exit code is 1 where a check failed.

    With --json: a line for each check, {"check", "state", "value", "advice"},
    the state being "ok", "warn" or "fail".
    """
    failed = False
    for finding in _findings():
        failed = failed or finding.state == "fail"
        if as_json:
            output.emit(asdict(finding))
        else:
            _print(finding)
    if failed:
        raise typer.Exit(1)


def _findings() -> Iterator[Finding]:
    yield _python()
    yield _apple()
    for name in WORKER_CHECKS:
        with _busy(name):
            finding = _worker_check(name)
        yield finding
        if name == "mlx" and finding.state != "ok":
            return
    yield from check_server(process_environment())


def _python() -> Finding:
    versions = ", ".join(f"{name} {installed_version(name)}" for name in ("grpcio", "protobuf"))
    return Finding("python", "ok", f"Python {platform.python_version()}, {versions}, {platform.platform()}")


def _apple() -> Finding:
    if sys.platform == "darwin":
        return Finding("apple", "warn", NOBODY_RAN_IT, "What follows is news: please report it, good or bad.")
    return Finding("apple", "ok", f"not Apple hardware; {NOBODY_RAN_IT}")


def _worker_check(name: str) -> Finding:
    argv = (sys.executable, "-P", "-m", "worker", "doctor", name)
    command = Command(argv, process_environment())
    try:
        done = asyncio.run(run_once(command, timeout_s=CHECK_TIMEOUT_S, max_output_bytes=MAX_OUTPUT_BYTES))
    except ProcessError as error:
        return Finding(name, "fail", f"its process did not end well: {error}", REPORT)
    if done.exit.code != 0:
        return Finding(name, "fail", _exit_words(done.exit), REPORT)
    return Finding(**json.loads(done.stdout))


def _exit_words(ended: ChildExit) -> str:
    how = f"exit code {ended.code}" if ended.signal is None else signal_name(ended.signal)
    last = f": {ended.last_lines[-1]}" if ended.last_lines else ""
    return f"its process ended by {how}{last}"


@contextmanager
def _busy(name: str) -> Generator[None]:
    """Show on a terminal what is being checked."""
    screen = output.console(stderr=True)
    if not screen.is_terminal:
        yield
        return
    with screen.status(f"checking {name}"):
        yield


def _print(finding: Finding) -> None:
    word, style = MARKS[finding.state]
    texts = (finding.value, finding.advice) if finding.advice else (finding.value,)
    output.marked(Text(word, style=style), finding.check, *texts)
