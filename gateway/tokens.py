"""The tokens that hold now: who a call's credentials stand for; the file is read again when it changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from structlog.typing import FilteringBoundLogger

from gateway.caller_errors import CredentialsExpired, CredentialsInvalid, CredentialsMissing
from gateway.token_file import TokenEntry, TokenFileError, parts_of, read_tokens

BEARER = "bearer "
AUTHORIZATION = "authorization"
Stamp = tuple[int, ...]


class Tokens:
    """Entries by the ids of their tokens and by the names of their certificates. Lives on one event loop."""

    def __init__(self, path: Path, log: FilteringBoundLogger, now: Callable[[], float] = time.time) -> None:
        """Read the file.

        Args:
            path: of it.
            log: takes what changes, and why a changed file does not hold.
            now: seconds since 1970.

        Raises:
            TokenFileError: it cannot be read or trusted, or is wrong.
        """
        self._path = path
        self._log = log
        self._now = now
        self._stamp = _stamp(path)
        self._problem = ""  # that keeps the file from being read again
        self._by_id: dict[str, TokenEntry] = {}
        self._by_certificate: dict[str, TokenEntry] = {}
        self._hold(read_tokens(path))

    def entry_for(self, metadata: Iterable[tuple[str, str | bytes]], certificates: Iterable[str] = ()) -> TokenEntry:
        """Return the entry that a call's credentials stand for; a token goes before a certificate.

        Args:
            metadata: of the call.
            certificates: the names in the certificate that its client showed.

        Raises:
            CredentialsMissing: there is neither a token nor a certificate that stands for anybody.
            CredentialsInvalid: the token is none that is known, or there are two.
            CredentialsExpired: it was good once.
        """
        told = [value for key, value in metadata if key == AUTHORIZATION]
        entry = self._by_token(told) if told else self._of_certificate(certificates)
        if entry.is_expired(self._now()):
            raise CredentialsExpired
        return entry

    def entry(self, entry_id: str) -> TokenEntry | None:
        """Return the entry with this id; None where it was revoked."""
        return self._by_id.get(entry_id)

    def is_expired(self, entry: TokenEntry) -> bool:
        """Say whether an entry's time is over."""
        return entry.is_expired(self._now())

    async def refresh(self) -> bool:
        """Read the file again if it has changed, and return whether other entries hold now.

        A file that is gone, or cannot be read or trusted, changes nothing: the log says why, once. It is tried again
        each time, for what is wrong with it may be mended without a change of the file.
        """
        stamp = await asyncio.to_thread(_stamp, self._path)
        if stamp == self._stamp:
            self._problem = ""
            return False
        try:
            entries = await asyncio.to_thread(read_tokens, self._path)
        except TokenFileError as error:
            problem = str(error)
            if problem != self._problem:
                self._log.error("tokens not read again", problem=problem)
            self._problem = problem
            return False
        self._stamp, self._problem = stamp, ""
        before = self._by_id
        self._hold(entries)
        if self._by_id == before:
            return False
        self._log.info(
            "tokens changed",
            added=sorted(one.name for key, one in self._by_id.items() if key not in before),
            removed=sorted(one.name for key, one in before.items() if key not in self._by_id),
            tokens=len(self._by_id),
        )
        return True

    def _by_token(self, told: list[str | bytes]) -> TokenEntry:
        text = told[0] if len(told) == 1 else ""
        if not isinstance(text, str) or text[: len(BEARER)].lower() != BEARER:
            raise CredentialsInvalid
        parts = parts_of(text[len(BEARER) :].strip())
        entry = None if parts is None else self._by_id.get(parts[0])
        if parts is None or entry is None or not entry.is_secret(parts[1]):
            raise CredentialsInvalid
        return entry

    def _of_certificate(self, names: Iterable[str]) -> TokenEntry:
        found = next((self._by_certificate[name] for name in names if name in self._by_certificate), None)
        if found is None:
            raise CredentialsMissing
        return found

    def _hold(self, entries: Iterable[TokenEntry]) -> None:
        self._by_id = {entry.id: entry for entry in entries}
        self._by_certificate = {one.certificate: one for one in self._by_id.values() if one.certificate is not None}


def _stamp(path: Path) -> Stamp | None:
    """Return what changes with the file and with who may read it; None where it is not there."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return (facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_size)
