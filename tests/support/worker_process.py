"""A real worker process, started as the gateway starts one, and a client on its socket."""

import contextlib
import json
import os
import secrets
import select
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc.aio

from tests.support.waiting import eventually, wait_until

MODEL = "tiny"
START_TIMEOUT_S = 30.0
OPTIONS = (
    ("grpc.default_authority", "localhost"),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", -1),
)


class WorkerProcess:
    """One worker, its lifeline, and what it wrote on standard error.

    Attributes:
        pid: of the process, which leads its own group.
        settings: as it was told.
    """

    def __init__(self, checkpoint: Path, arguments: Sequence[str] = (), **settings: Any) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="worker-", dir="/tmp")
        instance_id = secrets.token_hex(6)
        self.settings: dict[str, Any] = {
            "instance_id": instance_id,
            "model": MODEL,
            "checkpoint": str(checkpoint),
            "socket": f"{self.folder.name}/w-{instance_id}.sock",
            "secret": secrets.token_hex(16),
            **settings,
        }
        self._code: int | None = None
        lifeline, self._lifeline = os.pipe()
        told, telling = os.pipe()
        self._errors, errors = os.pipe()
        os.set_blocking(self._errors, False)
        self._said = b""
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            *((os.POSIX_SPAWN_DUP2, errors, fd) for fd in (1, 2)),
            *((os.POSIX_SPAWN_DUP2, each, 64 + index) for index, each in enumerate((lifeline, told))),
            (os.POSIX_SPAWN_DUP2, 64, 9),
            (os.POSIX_SPAWN_DUP2, 65, 10),
            (os.POSIX_SPAWN_CLOSE, 64),
            (os.POSIX_SPAWN_CLOSE, 65),
        ]
        self.pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-P", "-m", "worker", *arguments],
            {"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1"},
            file_actions=actions,
            setpgroup=0,
        )
        for fd in (lifeline, told, errors):
            os.close(fd)
        with os.fdopen(telling, "wb") as stream:
            stream.write(json.dumps(self.settings).encode())

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return Path(self.settings["socket"])

    def metadata(self, stamps: Mapping[str, str] | None = None) -> tuple[tuple[str, str], ...]:
        """Return what the gateway puts on a call."""
        stamped = {f"x-pomona-{key.replace('_', '-')}": value for key, value in (stamps or {}).items()}
        return tuple({"x-pomona-secret": self.settings["secret"], **stamped}.items())

    def channel(self) -> grpc.aio.Channel:
        """Return a channel to its socket."""
        return grpc.aio.insecure_channel(f"unix:{self.socket}", options=OPTIONS)

    async def appears(self) -> None:
        """Wait until it listens."""
        await eventually(lambda: self.socket.exists() or self.exit_code() is not None, START_TIMEOUT_S)

    def close_lifeline(self) -> None:
        """Let go of it, as a gateway does that dies."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def exit_code(self) -> int | None:
        """Return its exit code, or minus the signal that ended it; None while it runs."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    async def exits(self, timeout_s: float = 10.0) -> int:
        """Wait for its exit code."""
        await eventually(lambda: self.exit_code() is not None, timeout_s)
        assert self._code is not None
        return self._code

    def lines(self) -> list[dict[str, Any]]:
        """Return what it has logged so far; what is no JSON comes as an event."""
        with contextlib.suppress(BlockingIOError):
            while select.select([self._errors], [], [], 0)[0] and (part := os.read(self._errors, 1 << 16)):
                self._said += part
        return [_parsed(line) for line in self._said.decode().splitlines()]

    def children(self) -> list[int]:
        """Return the process ids of its group, without its own."""
        return [pid for pid in group_members(self.pid) if pid != self.pid]

    def end(self) -> None:
        """Kill what is left of it and clean up."""
        self.close_lifeline()
        if self.exit_code() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            wait_until(lambda: self.exit_code() is not None)
        os.close(self._errors)
        self.folder.cleanup()


def group_members(group: int) -> list[int]:
    """Return the processes of a group that have not ended."""
    members: list[int] = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                state, _, its_group = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
                if int(its_group) == group and state != "Z":
                    members.append(int(folder.name))
    return members


def _parsed(line: str) -> dict[str, Any]:
    try:
        parsed = json.loads(line)
    except ValueError:
        return {"event": line}
    return parsed if isinstance(parsed, dict) else {"event": line}
