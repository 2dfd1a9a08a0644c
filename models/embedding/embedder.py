"""What a checkpoint says of the vectors that it makes, and what is known of its kind where its files are silent."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from models.checkpoint.checkpoint import Limits, TextCheckpoint
from models.checkpoint.errors import CheckpointRejected
from models.checkpoint.pooling import PoolingConfig, PoolingMode, read_pooling
from models.checkpoint.text_config import CONFIG_FILE
from models.checkpoint.values import read_bool, read_list
from models.embedding.prompts import Prompts

# Of Qwen3-Embedding: converted checkpoints often come without the files that say so. Source: its model card.
_QWEN3_PROMPTS = {
    "query": ("Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"),
    "document": "",
}
_QWEN3_LEAST_DIMENSIONS = 32
_REVISION_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many values a vector may have.

    Attributes:
        full: as the model computes it.
        listed: fewer that it was trained for.
        least: from here on every number; None: only those listed.
    """

    full: int
    listed: tuple[int, ...] = ()
    least: int | None = None

    @property
    def reduced(self) -> tuple[int, ...]:
        """Those below `full` to tell people of: the listed ones, or of a range the powers of two."""
        if self.least is None:
            return self.listed
        powers = (1 << exponent for exponent in range(self.full.bit_length()))
        return tuple(power for power in powers if self.least <= power < self.full)

    def has(self, dimensions: int) -> bool:
        """Tell whether a vector may have so many."""
        if dimensions == self.full or dimensions in self.listed:
            return True
        return self.least is not None and self.least <= dimensions < self.full


@dataclass(frozen=True, slots=True)
class Embedder:
    """How a checkpoint's vectors are made.

    Attributes:
        mode: which tokens' hidden states become the vector.
        is_normalized: whether it is scaled to length 1 unless a request says otherwise.
        prompts: what may stand before a text.
        sizes: how many values it may have.
        max_tokens: of one text; None where nothing is said.
        revision: of all that its values depend on.
    """

    mode: PoolingMode
    is_normalized: bool
    prompts: Prompts
    sizes: Sizes
    max_tokens: int | None
    revision: str


def read_embedder(checkpoint: TextCheckpoint, path: Path) -> Embedder:
    """Read how a checkpoint makes vectors.

    Where no file says how tokens become a vector, it is the last one's, at length 1: of models whose tokens see only
    what is before them, the last alone has seen all.

    Args:
        checkpoint: its headers.
        path: of its folder or file.

    Raises:
        CheckpointError: the files that say so cannot be read, or ask for what is not computed.
    """
    stated = read_pooling(path) if path.is_dir() else None
    pooling = stated or PoolingConfig(PoolingMode.LAST, is_normalized=True)
    is_silent = stated is None and checkpoint.architecture == "qwen3"
    prompts = Prompts.of(_QWEN3_PROMPTS if is_silent else pooling.prompts, pooling.default_prompt)
    return Embedder(
        mode=pooling.mode,
        is_normalized=pooling.is_normalized,
        prompts=prompts,
        sizes=_sizes(checkpoint, pooling.mode, prompts),
        max_tokens=pooling.max_tokens,
        revision=_revision(checkpoint, pooling),
    )


def for_vectors(checkpoint: TextCheckpoint, embedder: Embedder) -> TextCheckpoint:
    """Return a checkpoint as vectors need it: a head that is stored is not read, and texts are as long as both say."""
    bounds = [bound for bound in (checkpoint.limits.max_position_embeddings, embedder.max_tokens) if bound is not None]
    headless = replace(checkpoint.text, tie_word_embeddings=True)
    return replace(checkpoint, text=headless, limits=Limits(min(bounds, default=None)))


def _sizes(checkpoint: TextCheckpoint, mode: PoolingMode, prompts: Prompts) -> Sizes:
    full = checkpoint.text.hidden_size
    listed = read_list(checkpoint.config, "matryoshka_dimensions", CONFIG_FILE) or []
    found = tuple(sorted(size for size in listed if type(size) is int and 1 <= size < full))
    if len(found) + listed.count(full) != len(listed):
        problem = f"is no list of whole numbers from 1 to {full}"
        raise CheckpointRejected(problem, file=CONFIG_FILE, key="matryoshka_dimensions")
    if listed:
        return Sizes(full, found)
    if read_bool(checkpoint.config, "is_matryoshka", CONFIG_FILE):
        return Sizes(full, least=1)
    is_qwen3 = checkpoint.architecture == "qwen3" and mode is PoolingMode.LAST and prompts.frame is not None
    return Sizes(full, least=_QWEN3_LEAST_DIMENSIONS if is_qwen3 else None)


def _revision(checkpoint: TextCheckpoint, pooling: PoolingConfig) -> str:
    """Return the checkpoint's revision, and another one for other files of pooling."""
    if not pooling.contents:
        return checkpoint.revision
    digest = hashlib.sha256(checkpoint.revision.encode())
    for content in pooling.contents:
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()[:_REVISION_DIGITS]
