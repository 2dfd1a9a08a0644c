"""What a child process of the worker lives within: messages on one socket, and limits that the kernel holds."""

import contextlib
import json
import resource
import signal
import socket
import struct
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

LENGTH = struct.Struct(">I")


def ignore_signals() -> None:
    """Ignore the signals that are meant for the worker; the child ends with it."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # inherited where it was ignored


def limit_memory(size: int) -> None:
    """Make allocations fail past `size` bytes of address space from here on (Linux; macOS holds no such limit)."""
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + size
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


@contextlib.contextmanager
def cpu_limit(seconds: float) -> Generator[None]:
    """Have the kernel end this process by SIGPROF once it has computed for so long, however busy the machine is."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def send(worker: socket.socket, message: dict[str, Any]) -> None:
    """Write one message."""
    body = json.dumps(message).encode()
    worker.sendall(LENGTH.pack(len(body)) + body)


def receive(worker: socket.socket) -> dict[str, Any] | None:
    """Read one message; None where the worker has closed the socket."""
    head = read_exactly(worker, LENGTH.size)
    body = read_exactly(worker, LENGTH.unpack(head)[0]) if head else b""
    return json.loads(body) if body else None


def read_exactly(worker: socket.socket, size: int) -> bytes:
    """Read `size` bytes, or nothing where the socket ends first."""
    parts = bytearray()
    while len(parts) < size:
        part = worker.recv(min(size - len(parts), 1 << 20))
        if not part:
            return b""
        parts += part
    return bytes(parts)
