"""How callers come in: the address, the certificates that are shown there, and who is let in."""

from __future__ import annotations

from collections.abc import Collection

import grpc.aio
from structlog.typing import FilteringBoundLogger

from gateway.address import check_exposure, parse_address
from gateway.auth import Guard
from gateway.ending import UNOBSERVED, Observer
from gateway.followers import Begin
from gateway.requests import Requests
from gateway.sections.security import SecuritySettings
from gateway.settings import Settings, SettingsError
from gateway.tls import CertificateError, CertificateFiles, Certificates
from gateway.token_file import TokenFileError
from gateway.tokens import Tokens


class Entrance:
    """The address of a server with what guards it. Lives on one event loop."""

    def __init__(
        self,
        settings: Settings,
        requests: Requests,
        relayed: Collection[str],
        log: FilteringBoundLogger,
        observer: Observer = UNOBSERVED,
    ) -> None:
        """Read the certificates and the tokens; nothing listens yet.

        Args:
            settings: all of them.
            requests: in flight.
            relayed: full names of the RPCs that are passed on to workers.
            log: takes who was refused, and what changes.
            observer: is told of the calls that are refused.

        Raises:
            ListenError: the address is none, or others could reach it who should not.
            SettingsError: the certificates or the tokens cannot be used.
        """
        told = settings.security
        self._log = log
        self._address = parse_address(settings.listen)
        check_exposure(
            self._address,
            has_tls=told.tls_cert is not None,
            has_tokens=told.tokens is not None,
            allow_plaintext=told.allow_plaintext,
        )
        self._certificates = _certificates(told, log)
        self._guard = _guard(told, requests, relayed, log, observer)
        self._is_bound = False

    @property
    def interceptors(self) -> tuple[grpc.aio.ServerInterceptor, ...]:
        """What stands before every handler of the server."""
        return () if self._guard is None else (self._guard,)

    def bind(self, server: grpc.aio.Server) -> str:
        """Have `server` listen, and return the address with the port that was taken.

        Raises:
            ListenError: the address is taken or not allowed.
        """
        credentials = None if self._certificates is None else self._certificates.credentials()
        address = self._address.bind(server, credentials)
        self._is_bound = True
        if not self._address.is_private and self._certificates is None:
            self._log.warning("other machines reach this server in the clear")
        if not self._address.is_private and self._guard is None:
            self._log.warning("other machines may do everything here without a token")
        return address

    def release(self) -> None:
        """Leave nothing of the address behind."""
        if self._is_bound:
            self._address.release()

    def following(self) -> dict[str, Begin]:
        """Return what reads changed files again until it is cancelled, by name."""
        found: dict[str, Begin] = {}
        if self._certificates is not None:
            found["certificates"] = self._certificates.follow
        if self._guard is not None:
            found["tokens"] = self._guard.follow
        return found

    async def refresh(self) -> None:
        """Read tokens and certificates again now, where they have changed; they are looked at each second too."""
        if self._certificates is not None:
            await self._certificates.refresh()
        if self._guard is not None:
            await self._guard.refresh()


def pull_refusal(settings: Settings) -> str:
    """Return why callers may not pull; empty where they may, or where their tokens say whether they may."""
    is_safe = parse_address(settings.listen).is_private or settings.security.tokens is not None
    if not (is_safe if settings.allow_pull is None else settings.allow_pull):
        return "this server's setting allow_pull is off"
    return "" if settings.hub_models else "this server's setting hub_models is off, so nothing pulled would be served"


def _certificates(told: SecuritySettings, log: FilteringBoundLogger) -> Certificates | None:
    if told.tls_cert is None or told.tls_key is None:
        return None
    try:
        return Certificates(CertificateFiles(told.tls_cert, told.tls_key, told.client_ca), log)
    except CertificateError as error:
        raise SettingsError(f"security: {error}") from error


def _guard(
    told: SecuritySettings,
    requests: Requests,
    relayed: Collection[str],
    log: FilteringBoundLogger,
    observer: Observer,
) -> Guard | None:
    if told.tokens is None:
        return None
    try:
        return Guard(Tokens(told.tokens, log), requests, relayed, log, observer=observer)
    except TokenFileError as error:
        raise SettingsError(f"security: {error}") from error
