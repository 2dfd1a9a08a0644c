"""Qwen 3 MoE: Qwen 3 with a mixture of experts in place of the feed-forward part of some layers, mostly of all.

Source: Yang et al. 2025, arXiv:2505.09388; `Qwen3MoeConfig` of transformers.
"""

from __future__ import annotations

from models import qwen3
from models.checkpoint.text_config import TextConfig
from models.checkpoint.weights import Weights
from models.layers.decoder import Decoder
from models.layers.dense import MLP, DenseConfig, FeedForward, dense_decoder
from models.layers.mixture import qwen_mixture


def build(text: TextConfig, weights: Weights) -> Decoder:
    """Build the model; raises as `dense_decoder`."""
    return dense_decoder(qwen3.dense_config(text), weights, _feed_forward)


def _feed_forward(config: DenseConfig, weights: Weights, layer: int) -> FeedForward:
    text = config.text
    if text.experts.has_experts(layer):
        return qwen_mixture(weights, text.experts, layer, text.hidden_size)
    return MLP(config, weights, layer)
