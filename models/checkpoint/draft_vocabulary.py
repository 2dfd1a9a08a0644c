"""draft_vocab.json: which of the target's tokens a drafter may propose, those that texts use most.

A drafter that ranks a few thousand tokens instead of all of them reads as much less of the head.
Source: Zhao et al. 2025, arXiv:2502.14856 (FR-Spec).
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

from models.checkpoint.errors import CheckpointCorrupt, CheckpointMissing, CheckpointRejected
from models.checkpoint.files import MAX_JSON_BYTES, inside, parse_object, read_bytes

DRAFT_VOCABULARY_FILE = "draft_vocab.json"
# Beside a checkpoint, what belongs to the heads that draft for it.
COMPANION_FOLDER = "mtp"
_KEY = "ids"

# Change time in ns and size in bytes.
_Stamp = tuple[int, int]


def find_draft_vocabulary(folder: Path, *, chosen: Path | None = None, is_off: bool = False) -> Path | None:
    """Return the file that holds for the checkpoint in `folder`; None: a drafter may propose every token.

    Args:
        folder: the target's.
        chosen: a file that somebody named: it goes before all else, there or not.
        is_off: whether the checkpoint's own is left alone.

    Raises:
        CheckpointRejected: the checkpoint's own is a link that leads outside its folder.
    """
    if chosen is not None:
        return chosen
    companion = folder / COMPANION_FOLDER
    if is_off or not (companion / DRAFT_VOCABULARY_FILE).exists():
        return None
    inside(folder, COMPANION_FOLDER, named_by=COMPANION_FOLDER)
    return inside(companion, DRAFT_VOCABULARY_FILE, named_by=DRAFT_VOCABULARY_FILE)


class DraftVocabularies:
    """Draft vocabularies by their path: each is read once, and again where its file has changed."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[_Stamp, tuple[int, ...]]] = {}

    def read(self, path: Path, vocab_size: int) -> tuple[int, ...]:
        """Return the distinct ids of a file in ascending order: these rows of the target's head are the draft's head.

        Args:
            path: of the file.
            vocab_size: tokens of the target; checked at every call, as one file may serve several targets.

        Raises:
            CheckpointMissing: the file is not there or cannot be read.
            CheckpointCorrupt: it is no JSON object with a list of ids, or an id is no whole number from 0.
            CheckpointRejected: it is too large, or the target has no such token.
        """
        stamp = _stamp(path)
        known = self._known.get(path)
        if known is None or known[0] != stamp:
            known = self._known[path] = stamp, _read(path)
        ids = known[1]
        if ids[-1] >= vocab_size:
            problem = f"names token {ids[-1]}; the target's tokens are below {vocab_size}"
            raise CheckpointRejected(problem, file=path.name, key=_KEY)
        return ids


def _stamp(path: Path) -> _Stamp:
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        raise CheckpointMissing("is not there", file=path.name) from error
    return found.st_mtime_ns, found.st_size


def _read(path: Path) -> tuple[int, ...]:
    listed: object = parse_object(read_bytes(path, MAX_JSON_BYTES), path.name).get(_KEY)
    if not isinstance(listed, list) or not listed:
        raise CheckpointCorrupt('is no list with entries, as in {"ids": [0, 1]}', file=path.name, key=_KEY)
    entries = cast("list[object]", listed)
    ids = {number for entry in entries if (number := _id(entry)) is not None}
    if any(_id(entry) is None for entry in entries):
        raise CheckpointCorrupt("holds what is no whole number from 0", file=path.name, key=_KEY)
    return tuple(sorted(ids))


def _id(entry: object) -> int | None:
    """Return a token id; JSON writes a whole number also as 7.0."""
    if isinstance(entry, float) and entry.is_integer():
        entry = int(entry)
    return entry if type(entry) is int and entry >= 0 else None
