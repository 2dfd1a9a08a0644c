"""A short name for exactly this content of a checkpoint, found without reading all of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from models.checkpoint.errors import CheckpointMissing
from models.checkpoint.files import open_regular

_HEX_DIGITS = 16
_SAMPLES = 32
_SAMPLE_BYTES = 4096


def revision_of(parts: Iterable[bytes], weight_files: Iterable[Path]) -> str:
    """Return 16 hex digits of a SHA-256 over the small files and headers, and samples of the weights.

    A hash of all weights would read every byte of them. Instead it takes each file's size and 32 samples of 4 KiB
    spread evenly over it: other training changes nearly every byte, so it changes the samples; a change made by hand
    to a few bytes may pass unseen.

    Args:
        parts: whole contents, or digests, in a fixed order.
        weight_files: in a fixed order.

    Raises:
        CheckpointMissing: a file cannot be read.
    """
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    for path in weight_files:
        digest.update(_sampled(path))
    return digest.hexdigest()[:_HEX_DIGITS]


def _sampled(path: Path) -> bytes:
    digest = hashlib.sha256()
    try:
        with open_regular(path) as file:
            size = file.seek(0, 2)
            digest.update(size.to_bytes(8, "little"))
            for index in range(_SAMPLES):
                file.seek(max(0, size - _SAMPLE_BYTES) * index // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    except OSError as error:
        raise CheckpointMissing("cannot be read", file=path.name) from error
    return digest.digest()
