"""The reference path gives mlx-lm's logits bit for bit, for every kind of checkpoint that Llama covers."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from tests.models.parity.equality import assert_bit_equal, load_path
from tests.models.stepping import greedy
from tests.support.tiny_models import write_llama

pytestmark = [
    # mlx-lm brings transformers, and both warn of things that are theirs.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

NUM_TOKENS = 64
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
Q4: dict[str, Any] = {"group_size": 32, "bits": 4}
Q8: dict[str, Any] = {"group_size": 64, "bits": 8}
MIXED: dict[str, Any] = {
    "group_size": 32,
    "bits": 4,
    "model.layers.0.mlp.down_proj": False,
    "model.layers.1.self_attn.v_proj": {"group_size": 64, "bits": 8},
    "model.embed_tokens": {"group_size": 32, "bits": 6},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "untied": {},
    "tied": {"config": {"tie_word_embeddings": True}},
    "every head its own keys": {"config": {"num_key_value_heads": 4}},
    "one key head for all": {"config": {"num_key_value_heads": 1}},
    "head_dim given": {"config": {"head_dim": 32}},
    "biases": {"config": {"attention_bias": True, "mlp_bias": True}},
    "rope linear": {"config": {"rope_scaling": {"type": "linear", "factor": 4.0}}},
    "rope llama3": {"config": {"rope_scaling": LLAMA3, "rope_theta": 500_000.0}},
    "rope of neighbours": {"config": {"rope_traditional": True}},
    "4-bit": {"quantization": Q4},
    "8-bit tied": {"quantization": Q8, "config": {"tie_word_embeddings": True}},
    "4-bit biases": {"quantization": Q4, "config": {"attention_bias": True, "mlp_bias": True}},
    "mixed": {"quantization": MIXED},
    "mixed tied": {"quantization": MIXED, "config": {"tie_word_embeddings": True}},
    "shards": {"num_shards": 3},
}


def prompt_of(num_tokens: int, seed: int = 7) -> list[int]:
    mx.random.seed(seed)
    return [int(token) for token in mx.random.randint(0, 256, (num_tokens,)).tolist()]  # pyright: ignore[reportGeneralTypeIssues]


def assert_parity(folder: Path, prompt: list[int], num_tokens: int = NUM_TOKENS) -> None:
    from tests.models.parity.mlx_lm_oracle import greedy_logits

    assert_bit_equal(list(greedy(load_path(folder), prompt, num_tokens)), greedy_logits(folder, prompt, num_tokens))


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
def test_logits_are_those_of_mlx_lm(tmp_path: Path, variant: dict[str, Any]) -> None:
    assert_parity(write_llama(tmp_path / "tiny", **variant), prompt_of(48))


def test_logits_are_those_of_mlx_lm_from_a_prompt_of_one_token(tmp_path: Path) -> None:
    assert_parity(write_llama(tmp_path / "tiny"), prompt_of(1))


def test_logits_are_those_of_mlx_lm_across_blocks_of_the_cache(tmp_path: Path) -> None:
    assert_parity(write_llama(tmp_path / "tiny"), prompt_of(230))


@pytest.mark.parametrize("num_tokens", [2048, 2049, 2050, 2300])
def test_logits_are_those_of_mlx_lm_across_chunks_of_the_prompt(tmp_path: Path, num_tokens: int) -> None:
    folder = write_llama(tmp_path / "tiny", config={"num_hidden_layers": 1}, quantization=None)
    assert_parity(folder, prompt_of(num_tokens), num_tokens=4)
