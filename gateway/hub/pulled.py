"""Which models Pomona pulled of a repository, written beside it: `pomona.json` in the repository's folder of the cache.

It goes with the repository, so nothing is left behind when another program removes that. Several pulls may note theirs
at once: whoever changes the file holds a lock of the folder.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

FILE = "pomona.json"
MAX_BYTES = 1024 * 1024
LOCK_LIMIT_S = 10.0  # the file is read and written within milliseconds
LOCK_PAUSE_S = 0.005
_COMMIT = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Pulled:
    """One model that was pulled.

    Attributes:
        name: in the catalogue.
        revision: the commit.
        file: the GGUF file that it is; empty for the whole snapshot.
    """

    name: str
    revision: str
    file: str = ""


def read_pulled(home: Path) -> list[Pulled]:
    """Return what was pulled of the repository at `home`; what cannot be read counts as nothing."""
    try:
        with (home / FILE).open("rb") as file:
            said: Any = json.loads(file.read(MAX_BYTES))
        entries = cast("list[dict[str, Any]]", said["models"])
        found = [Pulled(str(one["name"]), str(one["revision"]), str(one.get("file", ""))) for one in entries]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return []
    return [one for one in found if _COMMIT.fullmatch(one.revision) and (not one.file or _COMMIT.fullmatch(one.file))]


def remember(home: Path, pulled: Pulled) -> None:
    """Note a model; one of the same name is replaced.

    Raises:
        OSError: it cannot be written, or others keep the folder for longer than anybody needs.
    """
    with _locked(home):
        _write(home, [*(one for one in read_pulled(home) if one.name != pulled.name), pulled])


def forget(home: Path, name: str) -> None:
    """Note that a model is there no more.

    Raises:
        OSError: as `remember` says.
    """
    with _locked(home):
        _write(home, [one for one in read_pulled(home) if one.name != name])


def _write(home: Path, pulled: list[Pulled]) -> None:
    unfinished = home / f".{FILE}"
    unfinished.write_text(json.dumps({"models": [asdict(one) for one in pulled]}, indent=1) + "\n", "utf-8")
    unfinished.replace(home / FILE)


@contextmanager
def _locked(home: Path) -> Generator[None]:
    """Have the folder for this process and thread alone; whoever holds it lets go when it ends, however it does."""
    descriptor = os.open(home, os.O_RDONLY | os.O_CLOEXEC)
    try:
        until_s = time.monotonic() + LOCK_LIMIT_S
        while not _take(descriptor):
            if time.monotonic() > until_s:
                raise TimeoutError(f"{home} is locked by another process")
            time.sleep(LOCK_PAUSE_S)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
