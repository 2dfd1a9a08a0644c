"""What a model lets adapters change."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AdapterTarget:
    """A linear layer that adapters may add to.

    Attributes:
        module: canonical name, such as `model.layers.0.self_attn.q_proj`.
        inputs: width of what it reads.
        outputs: width of what it gives.
    """

    module: str
    inputs: int
    outputs: int
