"""Rounds that kill gateways and workers at chosen instants, for the kill tests and for `bench/kill.py`.

Each round says how long what must follow took, in seconds, and fails where something else followed.
"""

import contextlib
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from pomona.v1 import generation_pb2, model_pb2, model_pb2_grpc

from tests.support.scripted import STREAM_GENERATE
from tests.support.waiting import wait_until

FAKE_GATEWAY = Path(__file__).parent / "fake_gateway.py"
MODEL = "m"
MARK = "LC_POMONA_ROUND"  # Workers inherit LC_ variables, so all processes of a round are found by its value.
GREETING = "listening on "
LIMIT_S = 30.0
CAUGHT_S = 2.0  # that a process is left where it escapes on purpose
TOP: Mapping[str, Any] = {"listen": "127.0.0.1:0", "allow_pull": False}
QUICK: Mapping[str, Any] = {"back_off_first_s": 0.05, "back_off_limit_s": 0.1, "crash_budget": 1000}
STALLS: Mapping[str, Any] = {"heartbeat_s": 0.1, "suspect_after": 3, "lost_after": 10, "term_s": 2.0}


@dataclass
class GatewayProcess:
    """A gateway that serves one model, and all processes that belong to it."""

    process: "subprocess.Popen[str]"
    mark: str
    address: str = ""
    log: deque[str] = field(default_factory=lambda: deque[str](maxlen=500))

    @contextmanager
    def channel(self) -> Generator[grpc.Channel]:
        with grpc.insecure_channel(self.address, options=(("grpc.use_local_subchannel_pool", 1),)) as channel:
            yield channel

    def workers(self) -> set[int]:
        """Return its processes other than itself."""
        return processes_marked(self.mark) - {self.process.pid}

    def begin_load(self) -> None:
        with self.channel() as channel:
            request = model_pb2.LoadModelRequest(model=MODEL, return_immediately=True)
            model_pb2_grpc.ModelServiceStub(channel).LoadModel(request, timeout=LIMIT_S)

    def model(self, channel: grpc.Channel) -> model_pb2.Model:
        request = model_pb2.GetModelRequest(model=MODEL)
        return model_pb2_grpc.ModelServiceStub(channel).GetModel(request, timeout=LIMIT_S).model

    def stream(self, channel: grpc.Channel, max_tokens: int = 4000) -> Any:
        """Open a stream and return it once its first message is there."""
        stopping = generation_pb2.StoppingParams(max_tokens=max_tokens, ignore_eos=True)
        # No two alike: what two workers died with would be refused.
        prompt = f"Once upon a time there were {secrets.randbits(32)}"
        spec = generation_pb2.GenerationSpec(prompt=prompt, stopping=stopping)
        request = generation_pb2.StreamGenerateRequest(model=MODEL, spec=spec)
        call: Any = channel.unary_stream(STREAM_GENERATE)(request.SerializeToString(), timeout=2 * LIMIT_S)
        next(call)
        return call


@contextmanager
def gateway_process(
    checkpoint: Path | Mapping[str, Path],
    *,
    is_fake: bool = True,
    defects: Sequence[str] = (),
    limits: Mapping[str, Any] | None = None,
    top: Mapping[str, Any] | None = None,
    **supervision: Any,
) -> Generator[GatewayProcess]:
    """Run a gateway for the length of the block; nothing of it is left afterwards.

    Args:
        checkpoint: of the one model, or of each by name.
        is_fake: its workers follow scripts.
        defects: what is wrong with a fake gateway.
        limits: settings of requests.
        top: settings that are in no section.
        **supervision: settings of workers.
    """
    mark = secrets.token_hex(8)
    program = [str(FAKE_GATEWAY)] if is_fake else ["-m", "gateway", "serve", "--settings"]
    models = checkpoint if isinstance(checkpoint, Mapping) else {MODEL: checkpoint}
    with tempfile.TemporaryDirectory() as folder:
        sections = {"": {**TOP, **(top or {})}, "supervision": supervision, "limits": limits or {}}
        settings = write_settings(Path(folder), models, sections)
        process = subprocess.Popen(
            [sys.executable, "-P", *program, str(settings), *defects],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env={**os.environ, MARK: mark},
        )
        gateway = GatewayProcess(process, mark)
        reader = threading.Thread(target=gateway.log.extend, args=(process.stderr,), daemon=True)
        reader.start()
        try:
            gateway.address = first_line(gateway).removeprefix(GREETING)
            yield gateway
        finally:
            process.kill()
            process.wait(LIMIT_S)
            for pid in gateway.workers():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            reader.join(LIMIT_S)
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            process.stderr.close()


def write_settings(folder: Path, models: Mapping[str, Path], sections: Mapping[str, Mapping[str, Any]]) -> Path:
    """Write a TOML file, the section without a name first; JSON's numbers and plain strings are TOML's too."""
    named = ", ".join(
        f"{{ name = {json.dumps(name)}, checkpoint = {json.dumps(str(path))} }}" for name, path in models.items()
    )
    lines = [f"models = [{named}]"]
    for title, values in sections.items():
        lines += [f"[{title}]"] if title else []
        lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    path = folder / "settings.toml"
    path.write_text("\n".join(lines))
    return path


def first_line(gateway: GatewayProcess) -> str:
    assert gateway.process.stdout is not None
    timer = threading.Timer(LIMIT_S, gateway.process.kill)
    timer.start()
    try:
        line = gateway.process.stdout.readline().strip()
    finally:
        timer.cancel()
    assert line.startswith(GREETING), (line, list(gateway.log))
    return line


def processes_marked(mark: str) -> set[int]:
    """Return the processes, those that have ended left out, whose environment holds the mark."""
    if not Path("/proc/self/environ").exists():
        listing = subprocess.run(["/bin/ps", "-axEwwo", "pid=,command="], capture_output=True, text=True, check=True)
        return {int(line.split()[0]) for line in listing.stdout.splitlines() if f"{MARK}={mark}" in line}
    return {pid for pid in all_pids() if f"{MARK}={mark}".encode() in environment_of(pid)}


def all_pids() -> Iterator[int]:
    return (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())


def environment_of(pid: int) -> bytes:
    """Return a process's environment; it is empty for one that has ended."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def reason_of(error: Any) -> str:
    """Return ErrorInfo.reason of a failed call."""
    status: Any = rpc_status.from_call(error)
    info = error_details_pb2.ErrorInfo()
    assert status is not None, error
    assert any(detail.Unpack(info) for detail in status.details), status
    return info.reason


def end_of(call: Any) -> Any:
    """Read a stream to its end and return the error that it failed with, or None."""
    try:
        deque[bytes](call, maxlen=0)
    except grpc.RpcError as error:
        return error
    return None


@dataclass(frozen=True)
class Outage:
    """How long it took until the caller had its status, and until the model served again."""

    status_s: float
    serving_s: float


def kill_worker(gateway: GatewayProcess, channel: grpc.Channel, dice: random.Random) -> Outage:
    """Kill the worker in the midst of a stream."""
    return lose_worker(gateway, channel, dice, signal.SIGKILL, "WORKER_DIED")


def stop_worker(gateway: GatewayProcess, channel: grpc.Channel, dice: random.Random) -> Outage:
    """Stop the worker in the midst of a stream, so that it is there but does nothing."""
    return lose_worker(gateway, channel, dice, signal.SIGSTOP, "WORKER_STALLED")


def lose_worker(
    gateway: GatewayProcess, channel: grpc.Channel, dice: random.Random, number: signal.Signals, reason: str
) -> Outage:
    call = gateway.stream(channel)
    pid = gateway.model(channel).workers[0].pid
    time.sleep(dice.uniform(0.0, 0.1))  # the instant is what the round is about
    began = time.monotonic()
    os.kill(pid, number)
    error = end_of(call)
    status_s = time.monotonic() - began
    assert error is not None
    assert (error.code(), reason_of(error)) == (grpc.StatusCode.UNAVAILABLE, reason), (error, list(gateway.log))
    gateway.stream(channel, 1).cancel()
    serving_s = time.monotonic() - began
    assert gateway.model(channel).workers[0].pid != pid
    wait_until(lambda: len(gateway.workers()) == 1, LIMIT_S)
    return Outage(status_s, serving_s)


def kill_gateway(
    checkpoint: Path, dice: random.Random, *, is_fake: bool = True, span_s: float = 0.5, is_caught: bool = False
) -> float:
    """Kill a gateway at some instant of its worker's start and run, or, to see a defect, once its worker is ready.

    Returns:
        How long any process of it was left, in seconds.

    Raises:
        TimeoutError: one is left for good.
    """
    with gateway_process(checkpoint, is_fake=is_fake, **QUICK) as gateway, gateway.channel() as channel:
        gateway.begin_load()
        if is_caught:
            wait_until(lambda: gateway.model(channel).state == model_pb2.MODEL_STATE_ACTIVE, LIMIT_S)
        else:
            time.sleep(dice.uniform(0.0, span_s))  # the instant is what the round is about
        began = time.monotonic()
        gateway.process.kill()
        wait_until(lambda: not gateway.workers(), CAUGHT_S if is_caught else LIMIT_S)
        return time.monotonic() - began
