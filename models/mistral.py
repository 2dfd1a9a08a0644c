"""Mistral: Llama's decoder, in its first version with a window over every layer.

Source: Jiang et al. 2023, arXiv:2310.06825; `MistralConfig` of transformers.
"""

from __future__ import annotations

from models.checkpoint.text_config import TextConfig
from models.checkpoint.weights import Weights
from models.layers.decoder import Decoder
from models.layers.dense import DenseConfig, dense_decoder, full_rope


def dense_config(text: TextConfig) -> DenseConfig:
    """Say how Mistral varies the dense decoder."""
    return DenseConfig(text, full_rope(text))


def build(text: TextConfig, weights: Weights) -> Decoder:
    """Build the model; raises as `dense_decoder`."""
    return dense_decoder(dense_config(text), weights)
