"""Qwen 3: Llama's decoder with each head of queries and of keys normalized before positions are applied.

Source: Yang et al. 2025, arXiv:2505.09388; `Qwen3Config` of transformers.
"""

from __future__ import annotations

from models.checkpoint.text_config import TextConfig
from models.checkpoint.weights import Weights
from models.layers.decoder import Decoder
from models.layers.dense import DenseConfig, dense_decoder, full_rope


def dense_config(text: TextConfig) -> DenseConfig:
    """Say how Qwen 3 varies the dense decoder."""
    bias = text.attention_bias is True
    return DenseConfig(text, full_rope(text), qkv_bias=bias, output_bias=bias, has_head_norms=True)


def build(text: TextConfig, weights: Weights) -> Decoder:
    """Build the model; raises as `dense_decoder`."""
    return dense_decoder(dense_config(text), weights)
