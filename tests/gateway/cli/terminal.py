"""A conversation in a pseudo-terminal."""

import os
import signal
import subprocess
import sys

from tests.support.waiting import wait_until


class Terminal:
    """A chat in a pseudo-terminal."""

    def __init__(self, *arguments: str) -> None:
        self._process, self._fd = self._spawn(arguments)
        self.screen = ""

    def _spawn(self, arguments: tuple[str, ...]) -> tuple["subprocess.Popen[bytes]", int]:
        ours, theirs = os.openpty()
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "gateway", "chat", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        os.set_blocking(ours, False)
        return process, ours

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def wait_for(self, text: str) -> None:
        wait_until(lambda: text in self._read(), timeout_s=10)
        self.screen = self.screen.split(text, 1)[1]

    def wait_for_end(self) -> int:
        return self._process.wait(10)

    def close(self) -> None:
        self._process.kill()
        self._process.wait(5)
        os.close(self._fd)

    def _read(self) -> str:
        try:
            self.screen += os.read(self._fd, 65536).decode(errors="replace")
        except (BlockingIOError, OSError):
            return self.screen
        return self.screen
