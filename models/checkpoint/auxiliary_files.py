"""The files beside the weights that a written checkpoint needs to stay loadable: tokenizer, template, defaults."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from models.checkpoint.errors import CheckpointError
from models.checkpoint.files import inside, open_regular

AUXILIARY_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "spiece.model",
    "chat_template.jinja",
    "generation_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "README.md",
    "kv_config.json",
)
# Models of SentencePiece, whatever they are called.
_TOKENIZER_SUFFIX = ".model"
_log = logging.getLogger(__name__)


def auxiliary_files(folder: Path) -> tuple[str, ...]:
    """Return the names of those that a checkpoint has: the known ones in their order, then any other `*.model`.

    A folder that cannot be read has none.
    """
    try:
        names = {path.name for path in folder.iterdir() if path.is_file()}
    except OSError:
        return ()
    others = sorted(name for name in names - set(AUXILIARY_FILES) if name.endswith(_TOKENIZER_SUFFIX))
    return (*(name for name in AUXILIARY_FILES if name in names), *others)


def copy_auxiliary_files(source: Path, target: Path) -> tuple[str, ...]:
    """Copy the auxiliary files of one checkpoint into the folder of another, byte by byte, and return their names.

    What is there already is replaced. A file that cannot be read, or is a link that leads outside its folder, is left
    out with a line in the log: a checkpoint may do without.

    Args:
        source: folder that has them.
        target: folder that gets them; made where it is not there.

    Raises:
        OSError: one cannot be written.
    """
    target.mkdir(parents=True, exist_ok=True)
    return tuple(_copied(source, target, auxiliary_files(source)))


def _copied(source: Path, target: Path, names: Iterable[str]) -> Iterable[str]:
    for name in names:
        try:
            file = open_regular(inside(source, name, named_by=name))
        except CheckpointError as error:
            _log.warning("auxiliary file left out: %s", error)
            continue
        unfinished = target / f".{name}.{os.getpid()}"
        with file:
            try:
                with unfinished.open("wb") as copy:
                    shutil.copyfileobj(file, copy)
                unfinished.replace(target / name)
            finally:
                unfinished.unlink(missing_ok=True)
        yield name
