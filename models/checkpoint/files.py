"""Opening the files of a checkpoint: regular ones, inside its folder, of bounded size."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO, cast

from models.checkpoint.errors import CheckpointCorrupt, CheckpointMissing, CheckpointRejected

MAX_JSON_BYTES = 64 << 20
MAX_TOKENIZER_BYTES = 512 << 20


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; a pipe, device or socket is refused without waiting on it.

    Raises:
        CheckpointMissing: there is no such file, or it may not be read.
        CheckpointRejected: it is no regular file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise CheckpointMissing(missing_words(error), file=path.name) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CheckpointRejected("is not a regular file", file=path.name)
    return os.fdopen(descriptor, "rb")


def missing_words(error: Exception) -> str:
    """Say in words why a file cannot be opened."""
    return "may not be read" if isinstance(error, PermissionError) else "is not there"


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """Read a whole file of at most `max_bytes`.

    Raises:
        CheckpointMissing: it cannot be opened or read.
        CheckpointRejected: it is larger, or no regular file.
    """
    try:
        with open_regular(path) as file:
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise CheckpointMissing("cannot be read", file=path.name) from error
    if len(content) > max_bytes:
        raise CheckpointRejected(f"is larger than {max_bytes} bytes", file=path.name)
    return content


def parse_object(content: bytes, file: str) -> dict[str, Any]:
    """Parse JSON that must be an object.

    Raises:
        CheckpointCorrupt: it is not UTF-8, not JSON, nested beyond reason, or no object.
    """
    try:
        value: object = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointCorrupt("is not valid JSON", file=file) from error
    if not isinstance(value, dict):
        raise CheckpointCorrupt("is not a JSON object", file=file)
    return cast("dict[str, Any]", value)


def inside(folder: Path, name: str, *, named_by: str, part: str = "") -> Path:
    """Return the path of file `name` of a checkpoint folder.

    Links may stay within the folder or, in a cache of huggingface_hub (`<repository>/snapshots/<revision>`), lead to
    the repository's own `blobs`.

    Args:
        folder: the checkpoint's folder.
        name: a base name; where it comes from a file, nothing else is accepted.
        named_by: base name of the file that names it, for the error.
        part: base name of the folder within it that the file is in, checked before; empty: in none.

    Raises:
        CheckpointRejected: `name` is no plain base name, no text, or a link leads outside.
    """
    if any("\ud800" <= character <= "\udfff" for character in name):
        raise CheckpointRejected("names a file by what is no text", file=named_by, key=name)
    if not name or name in (".", "..") or any(character in name for character in "/\\\0"):
        raise CheckpointRejected("names a file outside the checkpoint's folder", file=named_by, key=name)
    path = folder / part / name
    roots = [os.path.realpath(folder)]
    if folder.parent.name == "snapshots":
        roots.append(os.path.realpath(folder.parent.parent / "blobs"))
    if not any(Path(os.path.realpath(path)).is_relative_to(root) for root in roots):
        raise CheckpointRejected("is a link that leads outside the checkpoint's folder", file=name)
    return path
