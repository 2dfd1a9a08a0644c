"""A mixture of experts: a feed-forward part of which each token computes a few of many.

                 router ──> numbers of experts, and their shares
                              │
    x ──────────────────> routed experts ──> mixed by their shares ──┐
    └──> shared expert, gated, where the architecture has one ───────┴──> added

What is shared is computed between asking the routed experts and taking their answers, which may wait for a disk.
Source: Shazeer et al. 2017, arXiv:1701.06538; shared experts: Dai et al. 2024, arXiv:2401.06066.
"""

from __future__ import annotations

from typing import Protocol

import mlx.core as mx

from models.checkpoint.expert_tensors import ExpertsShape
from models.checkpoint.text_config import ExpertsConfig
from models.checkpoint.weights import Weights
from models.layers.arithmetic import Arithmetic, Sharing
from models.layers.cache import Step
from models.layers.experts import Answers, Experts, ObserveRouting
from models.layers.linear import GatedLinear, LinearLayer
from models.layers.norms import RMSNorm


class Router(Protocol):
    """Chooses experts."""

    def __call__(self, x: mx.array, step: Step | None, /) -> tuple[mx.array, mx.array]:
        """Return for tokens [1, N, E] the numbers of k experts, integers [1, N, k], and their shares [1, N, k]."""
        ...


class SoftmaxRouter:
    """Chooses by a linear layer's largest outputs."""

    def __init__(self, gate: LinearLayer, num_chosen: int, sharing: Sharing, arithmetic: Arithmetic) -> None:
        self.gate = gate
        self._num_chosen = num_chosen
        self._sharing = sharing
        self._arithmetic = arithmetic

    def __call__(self, x: mx.array, step: Step | None) -> tuple[mx.array, mx.array]:
        """See `Router`."""
        return self._arithmetic.choose_experts(self.gate(x, step), self._num_chosen, self._sharing)


class ScaledRouter:
    """The same behind a normalization of its own; each expert's share is multiplied by a number of its own (Gemma 4).

    Args:
        norm: what the linear layer reads goes through it.
        proj: the linear layer, [1, N, E] to [1, N, X].
        expert_scale: [X].
        num_chosen: k.
        arithmetic: what computes.
    """

    def __init__(
        self, norm: RMSNorm, proj: LinearLayer, expert_scale: mx.array, num_chosen: int, arithmetic: Arithmetic
    ) -> None:
        self._norm = norm
        self.proj = proj
        self._expert_scale = expert_scale
        self._num_chosen = num_chosen
        self._arithmetic = arithmetic

    def __call__(self, x: mx.array, step: Step | None) -> tuple[mx.array, mx.array]:
        """See `Router`."""
        logits = self.proj(self._norm(x), step)
        return self._arithmetic.choose_experts(logits, self._num_chosen, Sharing.OF_CHOSEN, self._expert_scale)


class SharedExpert:
    """A feed-forward part that every token goes through, multiplied by the sigmoid of a number of the token's own."""

    def __init__(self, weights: Weights, prefix: str, gate: str, inner: int, width: int) -> None:
        """Take its tensors.

        Args:
            weights: of the model.
            prefix: canonical name of the part.
            gate: canonical name of the linear layer that gives the number.
            inner: width of the part.
            width: width E of the model.
        """
        self._arithmetic = weights.arithmetic
        self.gate_proj = weights.linear(f"{prefix}.gate_proj", inner, width)
        self.up_proj = weights.linear(f"{prefix}.up_proj", inner, width)
        self.down_proj = weights.linear(f"{prefix}.down_proj", width, inner)
        self._gated = GatedLinear(self.gate_proj, self.up_proj, weights.arithmetic)
        self._gate = weights.linear(gate, 1, width)

    def __call__(self, x: mx.array, step: Step | None) -> mx.array:
        """Apply the part to every position of `x` [1, N, E]."""
        return self._arithmetic.sigmoid_gate(self.down_proj(self._gated(x, step), step), self._gate(x, step))


class Mixture:
    """Routed experts, and a shared one where there is one.

    Args:
        layer: number of the layer.
        router: chooses.
        experts: answer.
        arithmetic: what computes.
        shared: what every token goes through; None: nothing.
        observe: told of every choice; None: nobody is.
    """

    def __init__(
        self,
        layer: int,
        router: Router,
        experts: Experts,
        arithmetic: Arithmetic,
        *,
        shared: SharedExpert | None = None,
        observe: ObserveRouting | None = None,
    ) -> None:
        self.router = router
        self.experts = experts
        self.shared = shared
        self._layer = layer
        self._observe = observe
        self._arithmetic = arithmetic

    def start(self, x: mx.array, step: Step | None, routed_by: mx.array | None = None) -> Answers:
        """Ask the routed experts, and go on with what does not depend on them.

        Args:
            x: [1, N, E], what the experts read.
            step: the step.
            routed_by: [1, N, E], what the router reads; None: `x`.

        Returns:
            What gives their answers, mixed: [1, N, E].
        """
        indices, shares = self.router(x if routed_by is None else routed_by, step)
        if self._observe is not None:
            self._observe(self._layer, indices)
        answers = self.experts.start(x, indices)
        return lambda *beside: self._arithmetic.mix(answers(*beside), shares)

    def __call__(self, x: mx.array, step: Step | None) -> mx.array:
        """Apply the mixture to every position of `x` [1, N, E]."""
        answers = self.start(x, step)
        if self.shared is None:
            return answers()
        shared = self.shared(x, step)
        return self._arithmetic.add(answers(shared), shared)

    def add_to(self, total: mx.array, x: mx.array, step: Step | None) -> mx.array:
        """Add to `total` [1, N, E] what the mixture gives for each position of `x` [1, N, E]."""
        return self._arithmetic.add(total, self(x, step))


def qwen_mixture(weights: Weights, config: ExpertsConfig, layer: int, width: int) -> Mixture:
    """Return the mixture of a layer of Qwen's models.

    Args:
        weights: of the model.
        config: of its experts.
        layer: number of the layer.
        width: width E of the model.

    Raises:
        CheckpointCorrupt, CheckpointRejected: a tensor is missing or has another shape, by name.
    """
    prefix = f"model.layers.{layer}.mlp"
    gate = weights.linear(f"{prefix}.gate", config.num_experts, width)
    sharing = Sharing.NORMALIZED if config.is_normalized else Sharing.OF_ALL
    shape = ExpertsShape(layer, f"{prefix}.switch_mlp", config.num_experts, config.intermediate_size, width)
    names = (f"{prefix}.shared_expert", f"{prefix}.shared_expert_gate")
    return Mixture(
        layer,
        SoftmaxRouter(gate, config.num_chosen, sharing, weights.arithmetic),
        weights.experts(shape, "silu"),
        weights.arithmetic,
        shared=SharedExpert(weights, *names, config.shared_size, width) if config.shared_size else None,
        observe=weights.experts_hooks.observe,
    )
