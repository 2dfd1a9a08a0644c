"""Qwen 2 and 2.5: Llama's decoder with biases on queries, keys and values alone.

Source: Yang et al. 2024, arXiv:2407.10671 and arXiv:2412.15115; `Qwen2Config` of transformers.
"""

from __future__ import annotations

from models.checkpoint.text_config import TextConfig
from models.checkpoint.weights import Weights
from models.layers.decoder import Decoder
from models.layers.dense import DenseConfig, dense_decoder, full_rope


def dense_config(text: TextConfig) -> DenseConfig:
    """Say how Qwen 2 varies the dense decoder."""
    return DenseConfig(text, full_rope(text), qkv_bias=True)


def build(text: TextConfig, weights: Weights) -> Decoder:
    """Build the model; raises as `dense_decoder`."""
    return dense_decoder(dense_config(text), weights)
