"""Phi 3: Llama's decoder with one matrix for queries, keys and values, one for gate and up, and a window in some.

Source: Abdin et al. 2024, arXiv:2404.14219; `Phi3Config` of transformers.
"""

from __future__ import annotations

from models.checkpoint.text_config import TextConfig
from models.checkpoint.weights import Weights
from models.layers.decoder import Decoder
from models.layers.dense import DenseConfig, dense_decoder, full_rope


def dense_config(text: TextConfig) -> DenseConfig:
    """Say how Phi 3 varies the dense decoder."""
    return DenseConfig(text, full_rope(text, share=text.partial_rotary_factor), is_fused=True)


def build(text: TextConfig, weights: Weights) -> Decoder:
    """Build the model; raises as `dense_decoder`."""
    return dense_decoder(dense_config(text), weights)
