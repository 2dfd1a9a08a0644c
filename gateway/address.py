"""Where the server listens: a Unix socket of its owner, a loopback address, or any other with TLS and tokens."""

from __future__ import annotations

import ipaddress
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio

UNIX = "unix:"
CONNECT_LIMIT_S = 1.0


class ListenError(Exception):
    """Raised when the server cannot listen where it was told to; the text says why."""


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A host and a port, 0 for a free one."""

    host: str
    port: int

    @property
    def is_private(self) -> bool:
        """Whether only this machine reaches it."""
        return _is_loopback(self.host)

    def bind(self, server: grpc.aio.Server, credentials: Any = None) -> str:
        """Have `server` listen here and return the address with the port that it got.

        Args:
            server: of the library.
            credentials: with which it shows who it is; None: the connections are in the clear.

        Raises:
            ListenError: the port is taken or not allowed.
        """
        host = f"[{self.host}]" if ":" in self.host else self.host
        _try_bind(
            socket.AF_INET6 if ":" in self.host else socket.AF_INET, (self.host, self.port), f"{host}:{self.port}"
        )
        port = _bound(server, f"{host}:{self.port}", credentials)
        return f"{host}:{port}"

    def release(self) -> None:
        """Leave nothing behind."""


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A Unix socket at an absolute path."""

    path: Path

    @property
    def is_private(self) -> bool:
        """Whether only this machine reaches it."""
        return True

    def bind(self, server: grpc.aio.Server, credentials: Any = None) -> str:
        """Have `server` listen here, with mode 0600, in place of the socket of a server that is dead.

        Args:
            server: of the library.
            credentials: with which it shows who it is; None: the connections are in the clear.

        Raises:
            ListenError: another server listens here, or the path is something else.
        """
        self._make_room()
        _try_bind(socket.AF_UNIX, str(self.path), str(self.path))
        self.path.unlink(missing_ok=True)
        mask = os.umask(0o177)
        try:
            _bound(server, f"{UNIX}{self.path}", credentials)
        finally:
            os.umask(mask)
        return f"{UNIX}{self.path}"

    def release(self) -> None:
        """Remove the socket."""
        self.path.unlink(missing_ok=True)

    def _make_room(self) -> None:
        try:
            mode = self.path.lstat().st_mode
        except FileNotFoundError:
            return
        except OSError as error:
            raise ListenError(f"{self.path}: {error.strerror}") from error
        if not stat.S_ISSOCK(mode):
            raise ListenError(f"{self.path} is there already and is no socket")
        if _is_answering(self.path):
            raise ListenError(f"another server listens at {self.path}")
        self.path.unlink(missing_ok=True)


Address = TcpAddress | UnixAddress


def parse_address(text: str) -> Address:
    """Read `HOST:PORT` or `unix:PATH`.

    Raises:
        ListenError: it is neither.
    """
    if text.startswith(UNIX):
        path = text.removeprefix(UNIX)
        if not path:
            raise ListenError("unix: needs a path behind it")
        return UnixAddress(Path(path).expanduser().absolute())
    host, found, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not found or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ListenError(f"{text!r} is neither HOST:PORT nor unix:PATH")
    return TcpAddress(host, int(port))


def check_exposure(address: Address, *, has_tls: bool, has_tokens: bool, allow_plaintext: bool) -> None:
    """Refuse to be reached from other machines by everybody, or in the clear, unless that is allowed.

    Raises:
        ListenError: the address is not this machine's alone, and TLS or tokens are missing.
    """
    missing = " and ".join(
        name
        for name, has in (("TLS (--tls-cert and --tls-key)", has_tls), ("tokens (--tokens)", has_tokens))
        if not has
    )
    if missing and not address.is_private and not allow_plaintext:
        raise ListenError(f"other machines can reach this address, so it needs {missing}; or --allow-plaintext")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_answering(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(CONNECT_LIMIT_S)
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError as error:
            raise ListenError(f"{path}: {error.strerror or 'it does not answer'}") from error
    return True


def _try_bind(family: socket.AddressFamily, where: Any, name: str) -> None:
    """Bind and let go, because the system says why it refuses, and the library does not."""
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(where)
        except OSError as error:
            raise ListenError(f"{name}: {(error.strerror or str(error)).lower()}") from error


def _bound(server: grpc.aio.Server, address: str, credentials: Any) -> int:
    """Bind and check the port: the library has returned 0 where it should have raised (grpc#10755)."""
    try:
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise ListenError(f"{address} is taken or not allowed") from error
    if not port:
        raise ListenError(f"{address} is taken or not allowed")
    return port
