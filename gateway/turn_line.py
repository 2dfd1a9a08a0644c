"""One worker's turn line: small fixed messages over a socket whose other end the worker inherits.

Message: kind, detail, two bytes of nothing, lease, microseconds; little-endian, 16 bytes. `worker/turn_line.py` is the
other side.
"""

import asyncio
import contextlib
import enum
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass

MESSAGE = struct.Struct("<BBHIQ")
# What a worker may say in one go: far more than any has to.
MAX_READ_BYTES = 256 * MESSAGE.size


class Kind(enum.IntEnum):
    """What a message says; the first four come from workers."""

    WANT = 1
    """I have work of the claim in `detail`."""
    RELEASE = 2
    """I give the turn back, with everything done that I gave the device, which I used for `micros`.

    `detail` is 0, or 1 more than my claim to the next turn.
    """
    STAY = 3
    """My step may take `micros` more than usual."""
    LEAVE = 4
    """I take no more turns, and everything that I gave the device is done."""
    GRANT = 5
    """The device is yours; `micros` is how long a burst is while others wait, `detail` who is about."""
    RECALL = 6
    """Others wait for your turn."""


FROM_WORKERS = frozenset({Kind.WANT, Kind.RELEASE, Kind.STAY, Kind.LEAVE})
IS_WANTED = 1
HAS_COMPANY = 2
HAS_OTHERS = 4


@dataclass(frozen=True, slots=True)
class Message:
    """One message; what a kind does not need is 0."""

    kind: Kind
    lease: int = 0
    detail: int = 0
    micros: int = 0


class LineError(Exception):
    """Raised when a worker says what no worker says, or does not read; says which."""


class LineClosedError(LineError):
    """Raised when the worker has closed its end, which most often means that its process ends."""


class TurnLine:
    """The gateway's end of a line, made together with the worker's. Lives on the event loop.

    Args:
        on_readable: is called when messages, or the line's end, have come.

    Raises:
        OSError: the system has no sockets left.
    """

    def __init__(self, on_readable: Callable[[], None]) -> None:
        self._ours, self._childs = socket.socketpair()
        self._loop = asyncio.get_running_loop()
        self._rest = b""
        self._is_open = True
        self._ours.setblocking(False)
        self._loop.add_reader(self._ours.fileno(), on_readable)

    @property
    def child_fd(self) -> int:
        """The worker's end, until `forget_child`."""
        return self._childs.fileno()

    def forget_child(self) -> None:
        """Close the worker's end here, once the worker has it."""
        self._childs.close()

    def read(self) -> list[Message]:
        """Return what has come, without waiting.

        Raises:
            LineClosedError: the worker has closed its end.
            LineError: it says what no worker says.
        """
        data = self._receive()
        if data is None:
            return []
        if not data:
            raise LineClosedError("it closed its turn line")
        data = self._rest + data
        whole = len(data) - len(data) % MESSAGE.size
        self._rest = data[whole:]
        return [_parsed(parts) for parts in MESSAGE.iter_unpack(data[:whole])]

    def send(self, message: Message) -> None:
        """Send a message, without waiting.

        Raises:
            LineClosedError: the worker has closed its end.
            LineError: it reads no more.
        """
        data = MESSAGE.pack(message.kind, message.detail, 0, message.lease, message.micros)
        try:
            sent = self._ours.send(data)
        except BlockingIOError:
            raise LineError("it does not read its turn line") from None
        except OSError:
            raise LineClosedError("it closed its turn line") from None
        if sent != len(data):
            raise LineError("it does not read its turn line")

    def close(self) -> None:
        """Close both ends that are here; a second call does nothing."""
        if self._is_open:
            self._is_open = False
            self.stop_reading()
            self._ours.close()
            self._childs.close()

    def stop_reading(self) -> None:
        """Look no more for what comes."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.remove_reader(self._ours.fileno())

    def _receive(self) -> bytes | None:
        try:
            return self._ours.recv(MAX_READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""


def _parsed(parts: tuple[int, int, int, int, int]) -> Message:
    kind, detail, _, lease, micros = parts
    if kind not in FROM_WORKERS:
        raise LineError("it said what no worker says on its turn line")
    return Message(Kind(kind), lease, detail, micros)
