"""The check that runs everything: a server, its worker, an answer, and what is left when the server is killed."""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from pomona.v1 import generation_pb2, model_pb2

from gateway.cli.answer import Printer, stream_answer
from gateway.cli.connection import Connection, ServerOptions, connect
from gateway.cli.demo import MODEL, demo_checkpoint
from gateway.cli.failures import CliError, SetupError
from gateway.cli.finding import Finding
from gateway.cli.load import load_with_progress
from gateway.cli.own_server import own_server
from gateway.process import Command, run_once

PROMPT = "Count from one to forty in words."
MAX_TOKENS = 48
# Of the load, and of the answer.
CALL_LIMIT_S = 120.0
WRITE_LIMIT_S = 60.0
ORPHAN_LIMIT_S = 5.0
# What the design promises: no worker outlives its server by more.
ORPHAN_GOAL_S = 0.25
POLL_S = 0.001


def check_server(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Serve a model, ask it, and kill the server.

    The model is the demo's, or a random one where that is not installed.
    """
    with tempfile.TemporaryDirectory(prefix="doctor-") as folder:
        try:
            name, checkpoint = "SmolLM2-135M", demo_checkpoint()
        except SetupError:
            name, checkpoint = "a random model", _write_checkpoint(Path(folder), environment)
        arguments = ("--listen", "127.0.0.1:0", "--log-level", "error", "--model", f"{MODEL}={checkpoint}")
        try:
            with ExitStack() as stack:
                server = stack.enter_context(own_server(arguments, environment))
                options = ServerOptions(server=server.address, timeout=CALL_LIMIT_S)
                link = stack.enter_context(connect(options))
                begin = time.monotonic()
                model = load_with_progress(link, model_pb2.LoadModelRequest(model=MODEL))
                loaded_s = time.monotonic() - begin
                yield _answer(link, name)
                pid = model.workers[0].pid
                server.kill()
                yield _worker(loaded_s, _time_to_end_s(pid))
        except CliError as error:
            yield Finding("server", "fail", str(error), "Please report this line.")


def _answer(connection: Connection, name: str) -> Finding:
    printer = Printer(quiet=True)
    request = generation_pb2.StreamGenerateRequest(model=MODEL)
    request.spec.chat.messages.add(role=generation_pb2.ROLE_USER, text=PROMPT)
    request.spec.sampling.temperature = 0
    request.spec.stopping.max_tokens = MAX_TOKENS
    stream_answer(connection, request, printer)
    rate = printer.statistics.get("tokens_per_second", 0.0)
    first = printer.statistics.get("time_to_first_token_s", 0.0)
    found = f"{name} through server and worker: {rate:.0f} tokens/s, first token after {first:.2f} s"
    return Finding("answer", "ok", found)


def _worker(loaded_s: float, ended_s: float | None) -> Finding:
    started = f"started and loaded in {loaded_s:.2f} s"
    if ended_s is None:
        return Finding("worker", "fail", f"{started}; outlived its killed server", "Please report this line.")
    found = f"{started}; gone {ended_s * 1000:.0f} ms after its server was killed"
    if ended_s > ORPHAN_GOAL_S:
        return Finding("worker", "warn", found, "A worker should be gone within 250 ms. Please report this line.")
    return Finding("worker", "ok", found)


def _time_to_end_s(pid: int) -> float | None:
    """Wait for a process to end; None where it does not within the limit."""
    begin = time.monotonic()
    while _is_running(pid):
        if time.monotonic() - begin > ORPHAN_LIMIT_S:
            return None
        time.sleep(POLL_S)
    return time.monotonic() - begin


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        # Ended, but not yet reaped by the parent that took it over.
        return sys.platform != "linux" or Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def _write_checkpoint(folder: Path, environment: Mapping[str, str]) -> Path:
    argv = (sys.executable, "-P", "-m", "worker", "doctor", "checkpoint", str(folder))
    asyncio.run(run_once(Command(argv, environment), timeout_s=WRITE_LIMIT_S, max_output_bytes=1024))
    return folder
