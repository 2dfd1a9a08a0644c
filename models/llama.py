"""Llama: a decoder with rotary positions, grouped queries and a gated feed-forward part.

Source: Touvron et al. 2023, arXiv:2302.13971 and arXiv:2307.09288; Grattafiori et al. 2024, arXiv:2407.21783.
"""

from __future__ import annotations

from models.checkpoint.text_config import TextConfig
from models.checkpoint.weights import Weights
from models.layers.decoder import Decoder
from models.layers.dense import DenseConfig, dense_decoder, full_rope


def dense_config(text: TextConfig) -> DenseConfig:
    """Say how Llama varies the dense decoder."""
    bias = text.attention_bias is True
    return DenseConfig(text, full_rope(text), qkv_bias=bias, output_bias=bias, mlp_bias=text.mlp_bias)


def build(text: TextConfig, weights: Weights) -> Decoder:
    """Build the model; raises as `dense_decoder`."""
    return dense_decoder(dense_config(text), weights)
