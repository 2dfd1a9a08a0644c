"""SmolLM 3: Llama's decoder, of which one layer in four applies no positions.

Source: Yang et al. 2025, arXiv:2501.18795 (layers without positions); `SmolLM3Config` of transformers.
"""

from __future__ import annotations

from models.checkpoint.text_config import TextConfig
from models.checkpoint.weights import Weights
from models.layers.decoder import Decoder
from models.layers.dense import DenseConfig, dense_decoder, full_rope


def dense_config(text: TextConfig) -> DenseConfig:
    """Say how SmolLM 3 varies the dense decoder."""
    bias = text.attention_bias is True
    return DenseConfig(text, full_rope(text), qkv_bias=bias, output_bias=bias, mlp_bias=text.mlp_bias)


def build(text: TextConfig, weights: Weights) -> Decoder:
    """Build the model; raises as `dense_decoder`."""
    return dense_decoder(dense_config(text), weights)
