"""The worker's end of its turn line: small fixed messages over a socket that it inherits.

Message: kind, detail, two bytes of nothing, lease, microseconds; little-endian, 16 bytes. `gateway/turn_line.py` is the
other side.
"""

import contextlib
import os
import socket
import stat
import struct
from dataclasses import dataclass
from enum import IntEnum

TURN_FD = 11
MESSAGE = struct.Struct("<BBHIQ")


class Kind(IntEnum):
    """What a message says; the last two come from the gateway."""

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
    """The device is mine; `micros` is how long a burst is while others wait, `detail` who is about."""
    RECALL = 6
    """Others wait for my turn."""


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


class TurnLine:
    """A line to the gateway.

    Args:
        fd: a connected stream socket; belongs to the line from now on.
    """

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(True)

    def send(self, message: Message) -> None:
        """Send a message; nothing where the gateway is gone, for then this process ends too."""
        data = MESSAGE.pack(message.kind, message.detail, 0, message.lease, message.micros)
        with contextlib.suppress(OSError):
            self._socket.sendall(data)

    def receive(self) -> Message | None:
        """Wait for a message, which may take as long as the gateway lives; None: the line is closed."""
        try:
            data = self._socket.recv(MESSAGE.size, socket.MSG_WAITALL)
        except OSError:
            return None
        if len(data) < MESSAGE.size:
            return None
        kind, detail, _, lease, micros = MESSAGE.unpack(data)
        return Message(Kind(kind), lease, detail, micros) if kind in {Kind.GRANT, Kind.RECALL} else None

    def close(self) -> None:
        """End the line for both sides; whoever waits in `receive` returns."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def keep_private(fd: int = TURN_FD) -> None:
    """Have programs that this one starts not inherit the descriptor."""
    with contextlib.suppress(OSError):
        os.set_inheritable(fd, False)


def open_line(fd: int = TURN_FD) -> TurnLine | None:
    """Return the line that was inherited; None where there is none."""
    try:
        is_socket = stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError:
        return None
    return TurnLine(fd) if is_socket else None
