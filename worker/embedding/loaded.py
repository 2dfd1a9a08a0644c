"""A loaded model that makes vectors, or one that ranks."""

from __future__ import annotations

from dataclasses import dataclass

from models.embedding.embedder import Embedder
from models.embedding.reranker import Reranker
from models.registry import LoadedModel


@dataclass(frozen=True, slots=True)
class LoadedEncoder:
    """What computing and answering take; one of `embedder` and `reranker` is there.

    Attributes:
        model: computes.
        max_tokens: of one input.
        embedder: how its vectors are made.
        reranker: how it is asked about documents.
    """

    model: LoadedModel
    max_tokens: int
    embedder: Embedder | None = None
    reranker: Reranker | None = None

    @property
    def answers(self) -> tuple[int, int] | None:
        """Tokens that say yes and no, of a reranker."""
        return None if self.reranker is None else (self.reranker.yes, self.reranker.no)

    @property
    def revision(self) -> str:
        """Of all that its numbers depend on."""
        return self.model.checkpoint.revision if self.embedder is None else self.embedder.revision
