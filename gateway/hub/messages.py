"""What a pull and whoever started it tell each other, as lines of JSON: the order, how far it is, how it ended."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from gateway.catalogue import is_name

MAX_PROBLEM_CHARS = 600
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}", re.ASCII)
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,199}\.gguf", re.ASCII | re.IGNORECASE)


class Kind(StrEnum):
    """Why a pull failed."""

    NOT_FOUND = "not_found"
    FORBIDDEN = "forbidden"
    UNREACHABLE = "unreachable"
    DISK_FULL = "disk_full"
    UNUSABLE = "unusable"
    CORRUPT = "corrupt"
    UNWRITABLE = "unwritable"


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be pulled.

    Attributes:
        repository: `organisation/name`.
        revision: a branch, a tag or a commit; empty: the main branch.
        name: of the model in the catalogue.
        file: a GGUF file of the repository; empty: the model in safetensors or CTranslate2's form.
    """

    repository: str
    revision: str = ""
    name: str = ""
    file: str = ""

    @property
    def model(self) -> str:
        """What it is called in the catalogue."""
        return self.name or self.repository

    def problems(self) -> dict[str, str]:
        """Return what is wrong with it, by attribute."""
        found: dict[str, str] = {}
        if not is_name(self.repository) or "/" not in self.repository or "--" in self.repository:
            found["repository"] = "is not organisation/name"
        if self.revision and (not _REVISION.fullmatch(self.revision) or _leaves(self.revision)):
            found["revision"] = "is not a branch, a tag or a commit"
        if self.name and not is_name(self.name):
            found["name"] = "is not the name of a model"
        if self.file and not _FILE.fullmatch(self.file):
            found["file"] = "is not the name of a GGUF file"
        return found

    def line(self) -> bytes:
        """Return it as JSON."""
        return json.dumps(asdict(self)).encode()


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a pull is.

    Attributes:
        phase: what is done now.
        file: which file that concerns; empty: several.
        bytes_done: of everything, what was there before included.
        bytes_total: of everything; 0 where that is not known yet.
    """

    phase: str
    file: str = ""
    bytes_done: int = 0
    bytes_total: int = 0


@dataclass(frozen=True, slots=True)
class Done:
    """A pull that ended well: the commit, and the folder or file of the checkpoint."""

    revision: str
    checkpoint: str


class Failed(Exception):
    """Raised when a pull fails; `problem` is for people and names no path, `facts` are for programs."""

    def __init__(self, kind: Kind, problem: str, **facts: int) -> None:
        super().__init__(problem)
        self.kind = kind
        self.problem = problem[:MAX_PROBLEM_CHARS]
        self.facts: Mapping[str, int] = facts


Message = Progress | Done | Failed


def write_message(message: Message) -> str:
    """Return a message as a line of JSON, without its line end."""
    match message:
        case Progress():
            said = {"progress": asdict(message)}
        case Done():
            said = {"done": asdict(message)}
        case Failed():
            said = {"failed": {"kind": message.kind, "problem": message.problem, **message.facts}}
    return json.dumps(said)


def read_message(line: str) -> Message | None:
    """Return the message in a line; None where it holds none."""
    try:
        said: Any = json.loads(line)
        if "progress" in said:
            return Progress(**said["progress"])
        if "done" in said:
            return Done(**said["done"])
        failed = dict(said["failed"])
        return Failed(Kind(failed.pop("kind")), str(failed.pop("problem")), **failed)
    except (ValueError, LookupError, TypeError):
        return None


def _leaves(path: str) -> bool:
    return any(part in {"", ".", ".."} for part in path.split("/"))
