"""A TCP connection between a client and a server that can be broken in the ways that networks break them."""

import contextlib
import socket
import struct
import threading
from collections.abc import Generator
from types import TracebackType

LIMIT_S = 10.0
BLOCK_BYTES = 65536
NO_LINGER = struct.pack("ii", 1, 0)  # close with a reset


class Proxy:
    """Forwards every connection to one server until it is told to break them."""

    def __init__(self, server: str) -> None:
        """Begin to listen; `server` is a host and a port."""
        host, _, port = server.rpartition(":")
        self._server = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> "Proxy":
        """Begin to forward."""
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Break what is left."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes who waits in accept
        self._listener.close()
        self.reset()
        for thread in self._threads:
            thread.join(LIMIT_S)

    def reset(self) -> None:
        """Reset every connection, on both sides."""
        for side in self._sides():
            with contextlib.suppress(OSError):
                side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
                side.shutdown(socket.SHUT_RD)
            side.close()

    def half_close(self) -> None:
        """Tell the server that nothing more comes from any client, and go on with what it sends."""
        for _, server in self._pairs:
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_WR)

    def _sides(self) -> list[socket.socket]:
        return [side for pair in self._pairs for side in pair]

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._server, LIMIT_S)
            server.settimeout(None)
            self._pairs.append((client, server))
            for source, target in ((client, server), (server, client)):
                thread = threading.Thread(target=_forward, args=(source, target), daemon=True)
                self._threads.append(thread)
                thread.start()


def _forward(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while block := source.recv(BLOCK_BYTES):
            target.sendall(block)
        target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def raw_connection(server: str) -> Generator[socket.socket]:
    """Connect to a server without speaking its protocol."""
    host, _, port = server.rpartition(":")
    with socket.create_connection((host, int(port)), LIMIT_S) as connection:
        yield connection
