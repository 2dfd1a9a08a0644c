"""The file of tokens: who they stand for, and the hash of each; never a token itself.

A token is `pomona_ID_SECRET`: the id finds its entry and may be shown, the secret is 256 random bits of which the file
has the SHA-256. The file belongs to its owner alone; changes are made under a lock and replace it as a whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import os
import re
import secrets
import stat
import tempfile
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from gateway.principal import EVERY_MODEL, SCOPES, CallerLimits, Principal

MARK = "pomona"
FORMAT = 1
ID_BYTES = 6
SECRET_BYTES = 32
MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_TOKENS = 10_000
MAX_RATE = 1_000_000
MAX_STREAMS = 100_000
LOCK_SUFFIX = ".lock"
LOCK_LIMIT_S = 10.0
LOCK_PAUSE_S = 0.02
OTHERS = stat.S_IRWXG | stat.S_IRWXO

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")]
Pattern = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9*][A-Za-z0-9._*/-]{0,199}$")]
_TOKEN = re.compile(rf"{MARK}_([0-9a-f]{{{2 * ID_BYTES}}})_([A-Za-z0-9_-]{{43}})", re.ASCII)


class TokenFileError(Exception):
    """Raised when the file of tokens cannot be read, trusted or written; the text says why, without any secret."""


class TokenEntry(BaseModel):
    """One token, or one client certificate, and what it stands for.

    Attributes:
        name: of the caller, unique in the file.
        id: of the token; also of a certificate's entry.
        sha256: of the token's secret, in hexadecimal digits; None for a certificate's entry.
        certificate: a name that the client's certificate has, as its subject or an alternative; None for a token's.
        group: whose cached prompts it shares; the name where none was given.
        scopes: what it may do.
        models: patterns of the names of models.
        created: when.
        expires: when it ends; None: when it is revoked.
        rate_per_minute: how many calls; None: any number.
        streams: how many of them open at once; None: any number.
        queue_share: of the places to wait in; None: the server's setting.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    name: Name
    id: Annotated[str, StringConstraints(pattern=rf"^[0-9a-f]{{{2 * ID_BYTES}}}$")]
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")] | None = None
    certificate: Annotated[str, StringConstraints(min_length=1, max_length=253)] | None = None
    group: Name
    scopes: Annotated[tuple[str, ...], Field(min_length=1)]
    models: Annotated[tuple[Pattern, ...], Field(min_length=1, max_length=100)] = (EVERY_MODEL,)
    created: AwareDatetime
    expires: AwareDatetime | None = None
    rate_per_minute: Annotated[int, Field(ge=1, le=MAX_RATE)] | None = None
    streams: Annotated[int, Field(ge=1, le=MAX_STREAMS)] | None = None
    queue_share: Annotated[float, Field(gt=0, le=1)] | None = None

    @model_validator(mode="after")
    def _check(self) -> TokenEntry:
        unknown = sorted(set(self.scopes) - set(SCOPES))
        if unknown:
            msg = f"there is no scope {unknown[0]}; there are {', '.join(SCOPES)}"
            raise ValueError(msg)
        if (self.sha256 is None) == (self.certificate is None):
            msg = "it needs either the hash of a token or the name of a certificate"
            raise ValueError(msg)
        return self

    def principal(self) -> Principal:
        """Return whom it stands for."""
        limits = CallerLimits(self.rate_per_minute, self.streams, self.queue_share)
        return Principal(self.name, self.group, frozenset(self.scopes), self.models, limits)

    def is_expired(self, now_s: float) -> bool:
        """Say whether it ended before `now_s`, in seconds since 1970."""
        return self.expires is not None and self.expires.timestamp() <= now_s

    def is_secret(self, secret: str) -> bool:
        """Say whether `secret` is this token's; takes as long for a wrong one as for the right one."""
        return hmac.compare_digest(self.sha256 or "", _digest(secret)) and self.sha256 is not None


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    format: Annotated[int, Field(ge=FORMAT, le=FORMAT)] = FORMAT
    tokens: Annotated[tuple[TokenEntry, ...], Field(max_length=MAX_TOKENS)] = ()

    @model_validator(mode="after")
    def _check(self) -> _File:
        for what, values in (
            ("name", [one.name for one in self.tokens]),
            ("id", [one.id for one in self.tokens]),
            ("certificate", [one.certificate for one in self.tokens if one.certificate is not None]),
        ):
            if len(set(values)) != len(values):
                msg = f"two tokens have the same {what}"
                raise ValueError(msg)
        return self


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token at its birth: its text is nowhere else, and its id and hash go into the file."""

    text: str
    id: str
    sha256: str


def new_token() -> NewToken:
    """Return a token of 256 random bits."""
    token_id, secret = secrets.token_hex(ID_BYTES), secrets.token_urlsafe(SECRET_BYTES)
    return NewToken(f"{MARK}_{token_id}_{secret}", token_id, _digest(secret))


def parts_of(text: str) -> tuple[str, str] | None:
    """Return id and secret of a token; None where the text is none."""
    found = _TOKEN.fullmatch(text)
    return None if found is None else (found[1], found[2])


def read_tokens(path: Path) -> tuple[TokenEntry, ...]:
    """Return the entries of a file.

    Raises:
        TokenFileError: it cannot be read, others than its owner may read or write it, or it is not as it should be.
    """
    return _parsed(path, _trusted_content(path))


def change_tokens(
    path: Path, change: Callable[[tuple[TokenEntry, ...]], Iterable[TokenEntry]]
) -> tuple[TokenEntry, ...]:
    """Put what `change` makes of the entries in their place, under a lock and all at once; a missing file is empty.

    Raises:
        TokenFileError: it cannot be read or written, or the entries do not go together.
    """
    with _locked(path):
        before = read_tokens(path) if path.exists() else ()
        try:
            after = _File(tokens=tuple(change(before)))
        except ValidationError as error:
            raise TokenFileError(_first_problem(error)) from None
        _write(path, after.model_dump_json(indent=2, exclude_none=True))
    return after.tokens


def local_time(moment: datetime) -> str:
    """Return a time for people, in the time zone of this machine."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M")


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _trusted_content(path: Path) -> bytes:
    """Read the file once it is known to be its owner's alone."""
    try:
        # Not to wait for a writer, where it is a pipe.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode):
                raise TokenFileError(f"{path} is no file")
            if facts.st_uid not in {os.geteuid(), 0}:
                raise TokenFileError(f"{path} belongs to another user")
            if facts.st_mode & OTHERS:
                raise TokenFileError(f"{path} may be read or written by others: chmod 600 {path}")
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise TokenFileError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > MAX_FILE_BYTES:
        raise TokenFileError(f"{path} is larger than {MAX_FILE_BYTES} bytes")
    return content


def _parsed(path: Path, content: bytes) -> tuple[TokenEntry, ...]:
    try:
        return _File.model_validate_json(content).tokens
    except ValidationError as error:
        raise TokenFileError(f"{path}: {_first_problem(error)}") from None


def _first_problem(error: ValidationError) -> str:
    """Return where the first problem is and what it is; never what stands there."""
    first = error.errors(include_input=False, include_url=False)[0]
    place = ".".join(map(str, first["loc"]))
    cause = first.get("ctx", {}).get("error")
    words = str(cause) if isinstance(cause, ValueError) else first["msg"]
    return f"{place}: {words}" if place else words


@contextlib.contextmanager
def _locked(path: Path) -> Generator[None]:
    """Hold the lock of changes; who else changes waits for it, within a limit."""
    lock = path.with_name(path.name + LOCK_SUFFIX)
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise TokenFileError(f"{lock} cannot be made: {error.strerror}") from None
    try:
        _lock(descriptor, path)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    end_s = time.monotonic() + LOCK_LIMIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end_s:
                raise TokenFileError(f"{path} is being changed by another process") from None
            time.sleep(LOCK_PAUSE_S)
        else:
            return


def _write(path: Path, text: str) -> None:
    """Replace the file by one that its owner alone may read, whole or not at all."""
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text + "\n")
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)
    except OSError as error:
        raise TokenFileError(f"{path} cannot be written: {error.strerror}") from None


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
