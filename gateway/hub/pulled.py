"""Which models Pomona pulled of a repository, written beside it: `pomona.json` in the repository's folder of the cache.

It goes with the repository, so nothing is left behind when another program removes that.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

FILE = "pomona.json"
MAX_BYTES = 1024 * 1024
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
    """Note a model; one of the same name is replaced."""
    _write(home, [*(one for one in read_pulled(home) if one.name != pulled.name), pulled])


def forget(home: Path, name: str) -> None:
    """Note that a model is there no more."""
    _write(home, [one for one in read_pulled(home) if one.name != name])


def _write(home: Path, pulled: list[Pulled]) -> None:
    unfinished = home / f".{FILE}"
    unfinished.write_text(json.dumps({"models": [asdict(one) for one in pulled]}, indent=1) + "\n", "utf-8")
    unfinished.replace(home / FILE)
