"""The child that renders one checkpoint's chat template, for as long as its worker lives.

A template is code from a checkpoint: it can loop for ever or fill the memory, and neither can be stopped inside a
process. So it runs here, under limits: the kernel ends what computes for too long, `worker.template_process` what gets
no time to. Messages are JSON objects, each behind its length, on one socket at descriptor 0.
"""

from worker import lifeline

# First, so that a worker that is gone takes a looping template with it.
if __name__ == "__main__":
    lifeline.arm()

import contextlib
import json
import resource
import signal
import socket
import struct
import sys
from collections.abc import Generator
from typing import Any

from models.checkpoint.chat_template import ChatTemplate, TemplateRejected

LENGTH = struct.Struct(">I")


def main() -> int:
    """Load the template of the first message, then render until the worker closes the socket."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # they are meant for the worker; this one ends with it
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # inherited where it was ignored
    with socket.socket(fileno=0) as worker:
        hello = receive(worker)
        if hello is None:
            return 0
        limit_memory(hello["memory_bytes"])
        try:
            with cpu_limit(hello["timeout_s"]):
                template = ChatTemplate(hello["source"], hello["bos_token"], hello["eos_token"])
        except TemplateRejected as error:
            send(worker, {"rejected": str(error)})
            return 0
        send(worker, {"variables": sorted(template.variables)})
        while (request := receive(worker)) is not None:
            with cpu_limit(hello["timeout_s"]):
                answered = answer(template, request)
            send(worker, answered)
    return 0


def answer(template: ChatTemplate, request: dict[str, Any]) -> dict[str, Any]:
    """Render one request; what the template refuses is an answer too."""
    try:
        text = template.render(
            request["messages"],
            request["variables"],
            add_generation_prompt=not request["continue_final_message"],
            continue_final_message=request["continue_final_message"],
        )
    except TemplateRejected as error:
        return {"rejected": str(error)}
    return {"text": text}


def limit_memory(size: int) -> None:
    """Make allocations past `size` bytes of address space fail (Linux; macOS does not hold such a limit)."""
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (size, size))


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


if __name__ == "__main__":
    sys.exit(main())
