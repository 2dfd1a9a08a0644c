"""The certificates that the server shows, and those that it trusts in clients; read again when their files change."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from structlog.typing import FilteringBoundLogger

LOOK_INTERVAL_S = 1.0
MAX_PEM_BYTES = 1024 * 1024
Stamp = tuple[tuple[int, ...], ...]


class CertificateError(Exception):
    """Raised when a certificate, its key or the certificates of clients cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """Where they lie, as PEM.

    Attributes:
        certificate: of the server, with those between it and its authority behind it.
        key: that belongs to it, not encrypted.
        client_ca: of the authorities whose certificates clients must have; None: clients need none.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None

    @property
    def all(self) -> tuple[Path, ...]:
        """Every file."""
        return (self.certificate, self.key, *([] if self.client_ca is None else [self.client_ca]))


class Certificates:
    """The credentials of a server, which change under it without a connection being lost."""

    def __init__(self, files: CertificateFiles, log: FilteringBoundLogger) -> None:
        """Read the files; `log` takes what changes, and why a changed file is not used.

        Raises:
            CertificateError: they cannot be read, or do not go together.
        """
        self._files = files
        self._log = log
        self._stamp = _stamp(files)
        self._problem = ""  # that keeps the files from being read again
        self._current = _configuration(files)
        self._shown = self._current

    def credentials(self) -> Any:
        """Return what a port of the library's server is opened with."""
        return grpc.dynamic_ssl_server_credentials(
            self._current, self._newer, require_client_authentication=self._files.client_ca is not None
        )

    async def follow(self) -> None:
        """Read the files again when they change; runs until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            await self.refresh()

    async def refresh(self) -> None:
        """Use what the files hold from the next connection on, if they have changed and go together.

        Where they do not, the log says why, once; they are tried again each time.
        """
        stamp = await asyncio.to_thread(_stamp, self._files)
        if stamp == self._stamp:
            self._problem = ""
            return
        try:
            self._current = await asyncio.to_thread(_configuration, self._files)
        except CertificateError as error:
            problem = str(error)
            if problem != self._problem:
                self._log.error("certificates not read again", problem=problem)
            self._problem = problem
        else:
            self._log.info("certificates changed")
            self._stamp, self._problem = stamp, ""

    def _newer(self) -> Any:
        """Return the certificates if others hold than were shown last; called by the library in a thread of its own."""
        current = self._current
        if current is self._shown:
            return None
        self._shown = current
        return current


def _stamp(files: CertificateFiles) -> Stamp:
    """Return what changes with the files; those that are not there have no part in it."""
    found: list[tuple[int, ...]] = []
    for path in files.all:
        try:
            facts = path.stat()
        except OSError:
            continue
        found.append((facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_size))
    return tuple(found)


def _configuration(files: CertificateFiles) -> Any:
    """Read the files and check that they go together: the library itself would only fail each connection."""
    chain, key = _read(files.certificate), _read(files.key)
    clients = None if files.client_ca is None else _read(files.client_ca)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(files.certificate, files.key, password=lambda: b"")
    except (ssl.SSLError, ValueError, OSError):
        problem = "no certificate with its key, in PEM form and not encrypted"
        raise CertificateError(f"{files.certificate} and {files.key}: they are {problem}") from None
    if files.client_ca is not None:
        try:
            context.load_verify_locations(files.client_ca)
        except (ssl.SSLError, OSError):
            raise CertificateError(f"{files.client_ca}: it holds no certificate in PEM form") from None
    return grpc.ssl_server_certificate_configuration([(key, chain)], root_certificates=clients)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_PEM_BYTES + 1)
    except OSError as error:
        raise CertificateError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > MAX_PEM_BYTES:
        raise CertificateError(f"{path} is larger than {MAX_PEM_BYTES} bytes")
    return content
