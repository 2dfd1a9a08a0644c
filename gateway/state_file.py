"""The file in which what callers chose outlives the server: one for each address, locked by the server that has it.

It is written beside its place, synchronized and moved there, so that it is always a whole one. Nothing in it is
believed unchecked: one that cannot be read is put aside. All of it may block; callers use a thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import stat
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError

from gateway.catalogue import is_name
from gateway.desired_adapters import DesiredAdapter
from gateway.experts import ExpertsWord
from gateway.kv_scheme import checked_kv_scheme
from gateway.model_status import Keeping, LoadOptions
from gateway.sections.section import Section

FOLDER = "pomona"
MAX_BYTES = 4 * 1024 * 1024
NAME_CHARS = 60
DIGEST_DIGITS = 8


class StateInUse(Exception):
    """Raised when another server has the file."""


@dataclass(frozen=True, slots=True)
class DesiredModel:
    """What callers chose for a model.

    Attributes:
        options: of its load.
        keeping: how long it stays.
        adapters: by name; None: it is not to be mounted, though the settings say so.
    """

    options: LoadOptions = field(default_factory=LoadOptions)
    keeping: Keeping = field(default_factory=Keeping)
    adapters: Mapping[str, DesiredAdapter | None] = field(default_factory=dict[str, DesiredAdapter | None])


NOTHING = DesiredModel()


def state_folder(environment: Mapping[str, str]) -> Path:
    """Return where programs of this user keep their state, a folder of ours in it; it need not exist."""
    said = environment.get("XDG_STATE_HOME")
    usual = "~/Library/Application Support" if sys.platform == "darwin" else "~/.local/state"
    return Path(said or usual).expanduser().absolute() / FOLDER


def state_path(folder: Path, listen: str) -> Path | None:
    """Return the file of a server by its address; None for one that takes any free port, which no other will have."""
    if not listen.startswith("unix:") and listen.endswith(":0"):
        return None
    words = re.sub(r"[^A-Za-z0-9.]+", "-", listen)[-NAME_CHARS:].strip("-")
    digest = hashlib.sha256(listen.encode()).hexdigest()[:DIGEST_DIGITS]
    return folder / f"{words}-{digest}.json"


class StateFile:
    """The file at `path`, which this process has for itself until `close`."""

    def __init__(self, path: Path) -> None:
        """Take it.

        Raises:
            StateInUse: another process has it.
            OSError: its folder cannot be made or written to.
        """
        self.path = path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._lock_fd = os.open(path.with_suffix(".lock"), flags, 0o600)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock_fd)
            if isinstance(error, BlockingIOError):
                raise StateInUse from error
            raise

    def read(self) -> dict[str, DesiredModel]:
        """Return what it holds, by model; nothing where there is no file.

        Raises:
            ValueError: it is not one of ours, or not this user's; it was put aside under another name.
            OSError: it cannot be read.
        """
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe has nobody wait for its writer
        except FileNotFoundError:
            return {}
        try:
            with os.fdopen(fd, "rb") as stream:
                _check_own(os.fstat(fd))
                text = stream.read(MAX_BYTES + 1)
            return _parsed(text)
        except ValueError as error:
            self.path.replace(self.path.with_suffix(".broken"))
            raise ValueError(_problem(error)) from None

    def write(self, models: Mapping[str, DesiredModel]) -> None:
        """Have it hold this from now on, also after a loss of power.

        Raises:
            OSError: it cannot be written; what it held before is still there.
            ValueError: it would not be read again: it is too much, or nothing that a caller can choose.
        """
        state = _State(version=1, models={name: _written(model) for name, model in models.items()})
        text = state.model_dump_json(exclude_defaults=True).encode()
        if len(text) > MAX_BYTES:
            raise ValueError(f"it would have more than {MAX_BYTES} bytes")
        beside = self.path.with_suffix(".new")
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(self.path)
        _synchronize(self.path.parent)

    def close(self) -> None:
        """Let another process have it."""
        os.close(self._lock_fd)


def _check_own(facts: os.stat_result) -> None:
    if not stat.S_ISREG(facts.st_mode):
        raise ValueError("it is no file")
    if facts.st_uid not in {os.geteuid(), 0}:
        raise ValueError("it belongs to another user")


def _parsed(text: bytes) -> dict[str, DesiredModel]:
    if len(text) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES} bytes")
    return {name: _desired(model) for name, model in _State.model_validate_json(text).models.items()}


def _name(text: str) -> str:
    if not is_name(text):
        raise ValueError("is no name")
    return text


def _scheme(text: str) -> str:
    return checked_kv_scheme(text, None)


_Name = Annotated[str, AfterValidator(_name)]


class _Options(Section):
    context_tokens: Annotated[int | None, Field(ge=1, le=16_777_216)] = None
    max_batch_rows: Annotated[int | None, Field(ge=1, le=256)] = None
    kv_scheme: Annotated[str, Field(max_length=64), AfterValidator(_scheme)] | None = None
    experts: ExpertsWord | None = None
    expert_budget: Annotated[int | None, Field(ge=1, lt=1 << 62)] = None


class _Adapter(Section):
    source: _Name | Literal[""] = ""
    pinned: bool = False
    revision: Annotated[str, Field(max_length=200)] = ""


class _Model(Section):
    options: _Options = _Options()
    pinned: bool | None = None
    idle_ttl_s: Annotated[float | None, Field(ge=0, allow_inf_nan=False)] = None
    adapters: Annotated[dict[_Name, _Adapter | None], Field(default_factory=dict, max_length=1000)]


class _State(Section):
    version: Literal[1]
    models: Annotated[dict[_Name, _Model], Field(max_length=10_000)]


def _desired(model: _Model) -> DesiredModel:
    adapters = {
        name: None if one is None else DesiredAdapter(name, **one.model_dump()) for name, one in model.adapters.items()
    }
    return DesiredModel(LoadOptions(**model.options.model_dump()), Keeping(model.pinned, model.idle_ttl_s), adapters)


def _written(model: DesiredModel) -> _Model:
    adapters = {
        name: None if one is None else _Adapter(source=one.source, pinned=one.pinned, revision=one.revision)
        for name, one in model.adapters.items()
    }
    return _Model(options=_Options(**asdict(model.options)), **asdict(model.keeping), adapters=adapters)


def _problem(error: ValueError) -> str:
    """Return what is wrong with a file, without anything that is in it."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def _synchronize(folder: Path) -> None:
    """Have the disk hold the names of a folder; some file systems do not offer that."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    with contextlib.suppress(OSError):
        os.fsync(fd)
    os.close(fd)
