"""Two gateways with scripted workers behind one channel, each a process that can be restarted at its port."""

import asyncio
import contextlib
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.kill_rounds import FAKE_GATEWAY, GREETING, MODEL, QUICK
from tests.support.scripted import events_in, write_script
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
ENVOY = shutil.which("envoy", path=str(Path(sys.executable).parent))
LIMIT_S = 30.0
# A gateway that is back is found soon: by default clients wait up to two minutes.
RECONNECTION = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
RETRIES: Mapping[str, Any] = {
    "maxAttempts": 4,
    "initialBackoff": "0.1s",
    "maxBackoff": "2s",
    "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE"],
}


@dataclass
class Replica:
    """One gateway: where it listens, and what its workers do."""

    port: int
    folder: Path
    process: "subprocess.Popen[str] | None" = None
    log: deque[str] = field(default_factory=lambda: deque[str](maxlen=200))
    readers: list[threading.Thread] = field(default_factory=list[threading.Thread])

    def start(self) -> None:
        """Start the process; it listens once `until_listening` returns."""
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(FAKE_GATEWAY), str(self.folder / "settings.toml")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
        )
        self.readers.append(threading.Thread(target=self.log.extend, args=(self.process.stderr,), daemon=True))
        self.readers[-1].start()

    async def until_listening(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        async with asyncio.timeout(LIMIT_S):
            line = await asyncio.to_thread(self.process.stdout.readline)
        assert line.startswith(GREETING), (line, list(self.log))

    async def end(self, number: signal.Signals) -> int:
        """Send a signal and return the exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        code = await asyncio.to_thread(self.process.wait, LIMIT_S)
        self.close()
        return code

    def close(self) -> None:
        """Leave nothing of the process behind."""
        if self.process is None:
            return
        self.process.kill()
        self.process.wait(LIMIT_S)
        for reader in self.readers:
            reader.join(LIMIT_S)
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        self.process = None

    def served(self) -> int:
        """Return how many requests its workers have begun, over all its lives."""
        return len(events_in(self.folder, "began"))

    def is_midway(self, method: str, least_s: float, most_s: float) -> bool:
        """Say whether its workers began a request of `method` so many seconds ago."""
        now_s = time.monotonic()
        begun = [one["time"] for one in events_in(self.folder, "began") if one["method"] == method]
        return any(least_s <= now_s - began_s <= most_s for began_s in begun)

    async def until_used(self, served: int) -> None:
        """Wait until its workers have begun more than `served` requests."""
        await eventually(lambda: self.served() > served, LIMIT_S)


@dataclass
class Pair:
    """Two replicas."""

    replicas: tuple[Replica, Replica]

    @property
    def target(self) -> str:
        """What a client connects to that balances by itself."""
        return "ipv4:" + ",".join(f"127.0.0.1:{one.port}" for one in self.replicas)

    async def start(self) -> None:
        for one in self.replicas:
            one.start()
        for one in self.replicas:
            await one.until_listening()

    async def restart(self, index: int, number: signal.Signals, is_right_time: Callable[[Replica], bool]) -> int:
        """End a replica at the right time, start it again, wait until requests come to it, and return its exit code."""
        one = self.replicas[index]
        await eventually(lambda: is_right_time(one), LIMIT_S)
        code = await one.end(number)
        served = one.served()
        one.start()
        await one.until_listening()
        await one.until_used(served)
        return code


@contextmanager
def gateway_pair(folder: Path, methods: Mapping[str, Any], limits: Mapping[str, float]) -> Generator[Pair]:
    """Prepare two gateways whose workers answer by `methods`; none of their processes is left after the block."""
    made: list[Replica] = []
    for name, port in zip("ab", free_ports(2), strict=True):
        own = folder / name
        own.mkdir()
        script = write_script(own, methods=methods, tasks=["TASK_GENERATE", "TASK_TRANSCRIBE"])
        write_settings(own / "settings.toml", port, script, limits)
        made.append(Replica(port, own))
    try:
        yield Pair((made[0], made[1]))
    finally:
        for one in made:
            one.close()


def write_settings(path: Path, port: int, script: Path, limits: Mapping[str, float]) -> None:
    lines = [
        f'listen = "127.0.0.1:{port}"',
        f"models = [{{ name = {json.dumps(MODEL)}, checkpoint = {json.dumps(str(script))} }}]",
        "[limits]",
        *(f"{key} = {value}" for key, value in limits.items()),
        "[supervision]",
        *(f"{key} = {json.dumps(value)}" for key, value in QUICK.items()),
    ]
    path.write_text("\n".join(lines))


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens at now."""
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def service_config(*, health_checks: bool) -> str:
    """Return what a client is told: to balance, to look at health, and to try UNAVAILABLE again."""
    config: dict[str, Any] = {
        "loadBalancingConfig": [{"round_robin": {}}],
        "methodConfig": [{"name": [{}], "retryPolicy": RETRIES}],
    }
    if health_checks:
        config["healthCheckConfig"] = {"serviceName": ""}
    return json.dumps(config)


@contextmanager
def envoy(folder: Path, *upstream: int) -> Generator[str]:
    """Run Envoy with `deploy/envoy.yaml` in front of these ports for the length of the block; yields its address."""
    assert ENVOY is not None
    clients, admin = free_ports(2)
    config = (ROOT / "deploy" / "envoy.yaml").read_text()
    for old, new in zip((8080, 9901, 50051, 50052), (clients, admin, *upstream), strict=True):
        config, count = re.subn(rf"port_value: {old}\b", f"port_value: {new}", config)
        assert count == 1, old
    config = config.replace("build/pomona.binpb", str(descriptors(folder)))
    path = folder / "envoy.yaml"
    path.write_text(config)
    command = [ENVOY, "-c", str(path), "--concurrency", "1", "--disable-hot-restart", "--log-level", "error"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            yield f"127.0.0.1:{clients}"
        finally:
            process.kill()
            process.wait(LIMIT_S)


def descriptors(folder: Path) -> Path:
    """Write what `make descriptors` writes, and return its path."""
    from google.protobuf import descriptor_pb2
    from google.rpc import error_details_pb2, status_pb2
    from pomona.v1 import embedding_pb2, generation_pb2, model_pb2, server_pb2, transcription_pb2

    files: dict[str, Any] = {}

    def add(descriptor: Any) -> None:
        for other in descriptor.dependencies:
            add(other)
        files.setdefault(descriptor.name, descriptor)

    modules: tuple[Any, ...] = (
        *(embedding_pb2, generation_pb2, model_pb2, server_pb2, transcription_pb2),
        *(error_details_pb2, status_pb2),
    )
    for module in modules:
        add(module.DESCRIPTOR)
    made = descriptor_pb2.FileDescriptorSet()
    for each in files.values():
        each.CopyToProto(made.file.add())
    path = folder / "pomona.binpb"
    path.write_bytes(made.SerializeToString())
    return path
