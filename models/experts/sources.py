"""Which weight files a pack was made of, so that a pack of other weights is never taken for one of these; no MLX.

A file is told by its name, size and time of change, a hash of its header and one of samples spread over its data:
whoever writes other weights into the same file, and even sets its time back, is noticed by the samples.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, cast

from models.checkpoint.errors import CheckpointMissing
from models.checkpoint.files import missing_words
from models.checkpoint.revision import revision_of
from models.checkpoint.safetensors import read_safetensors_digest


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One weight file.

    Attributes:
        name: base name.
        size_bytes: of the file.
        changed_ns: when it was last changed, in nanoseconds since 1970; of a link, the file behind it.
        header: SHA-256 of its header, in hex.
        samples: of its data, in hex, see `revision_of`.
    """

    name: str
    size_bytes: int
    changed_ns: int
    header: str
    samples: str

    @classmethod
    def of(cls, path: Path) -> SourceFile:
        """Look at a file.

        Raises:
            CheckpointError: it is not there, cannot be read, or its header breaks off.
        """
        try:
            stat = path.stat()
        except OSError as error:
            raise CheckpointMissing(missing_words(error), file=path.name) from error
        header = read_safetensors_digest(path).hex()
        return cls(path.name, stat.st_size, stat.st_mtime_ns, header, revision_of((), [path]))

    @classmethod
    def from_json(cls, value: object) -> SourceFile | None:
        """Return what `as_json` gave; None for anything else."""
        if not isinstance(value, dict):
            return None
        said = cast("Mapping[str, Any]", value)
        kinds = {each.name: int if each.type == "int" else str for each in fields(cls)}
        if said.keys() != kinds.keys() or any(type(said[name]) is not kind for name, kind in kinds.items()):
            return None
        return cls(**said)

    def as_json(self) -> dict[str, str | int]:
        """Return it as plain values."""
        return asdict(self)

    def difference(self, now: SourceFile) -> str:
        """Say in a few words how the file differs from what it was; empty: not at all."""
        words = {
            "size_bytes": "has another size",
            "header": "holds other tensors",
            "samples": "holds other weights",
            "changed_ns": "was changed",
        }
        found = (text for name, text in words.items() if getattr(self, name) != getattr(now, name))
        return next(found, "")


def source_files(paths: Iterable[Path]) -> list[SourceFile]:
    """Look at weight files, by name; raises as `SourceFile.of`."""
    return [SourceFile.of(path) for path in sorted(set(paths))]


def first_difference(then: Iterable[SourceFile], now: Iterable[SourceFile]) -> str:
    """Say which file is the first that is not what it was, and how; empty: all are."""
    before, after = ({file.name: file for file in files} for files in (then, now))
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if old is None or new is None:
            return f"{name} {'is new' if old is None else 'is gone'}"
        if words := old.difference(new):
            return f"{name} {words}"
    return ""


def digest_of(content: bytes) -> bytes:
    """Return the SHA-256 that all parts of a pack are checked by."""
    return hashlib.sha256(content).digest()
