"""Requests for vectors and scores as the engine takes them: checked, and in tokens."""

from __future__ import annotations

import secrets
from array import array
from dataclasses import dataclass, field

from models.checkpoint.pooling import PoolingMode
from models.embedding.vectors import VectorForm


@dataclass(frozen=True, slots=True)
class VectorWish:
    """What a request wants of each input.

    Attributes:
        mode: how the vectors of its tokens become one; None: each token keeps its own.
        form: of each vector.
    """

    mode: PoolingMode | None
    form: VectorForm


@dataclass(frozen=True, slots=True)
class EncodeRequest:
    """Inputs of which something is wanted, one by one.

    Attributes:
        request_id: what people know it by.
        inputs: tokens of each, none of them empty.
        wish: which vectors of each; None: the model is a reranker, and says yes or no at the end of each.
        priority: -128 (last) to 127 (first).
        deadline: in seconds of the engine's clock; None: no deadline.
        key: what the engine knows it by.
    """

    request_id: str
    inputs: tuple[array[int], ...] = field(repr=False)
    wish: VectorWish | None
    priority: int = 0
    deadline: float | None = None
    key: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def num_tokens(self) -> int:
        """Tokens of all inputs."""
        return sum(map(len, self.inputs))
