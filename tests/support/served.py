"""`pomona serve` as a process of its own, for tests over real sockets."""

import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

START_LIMIT_S = 30.0
STOP_LIMIT_S = 30.0
GREETING = "listening on "


@dataclass
class Served:
    """A server that takes calls at `address`; `log` holds the last lines of its standard error."""

    process: "subprocess.Popen[str]"
    address: str
    log: deque[str] = field(default_factory=lambda: deque[str](maxlen=5000))

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_LIMIT_S)


@contextmanager
def served(*arguments: str, listen: str = "127.0.0.1:0") -> Generator[Served]:
    """Run `pomona serve` with `arguments` for the length of the block; it is killed where it is still there after."""
    command = [sys.executable, "-P", "-m", "gateway", "serve", "--listen", listen, *arguments]
    log: deque[str] = deque(maxlen=5000)
    # Not the checkout: what runs must be what is installed.
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tempfile.gettempdir()
    ) as process:
        assert process.stderr is not None
        reader = threading.Thread(target=log.extend, args=(process.stderr,), daemon=True)
        reader.start()
        try:
            yield Served(process, _first_line(process, log), log)
        finally:
            process.kill()
            process.wait(STOP_LIMIT_S)
            reader.join(STOP_LIMIT_S)


def demo_checkpoint() -> Path:
    """Return SmolLM2's file, which `make setup` installs."""
    from gateway.cli.demo import demo_checkpoint as find

    return find()


def _first_line(process: "subprocess.Popen[str]", log: deque[str]) -> str:
    assert process.stdout is not None
    timer = threading.Timer(START_LIMIT_S, process.kill)
    timer.start()
    try:
        line = process.stdout.readline()
    finally:
        timer.cancel()
    assert line.startswith(GREETING), (line, list(log))
    return line.removeprefix(GREETING).strip()
