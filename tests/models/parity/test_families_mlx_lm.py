"""The reference path gives mlx-lm's logits bit for bit, for every family."""

from pathlib import Path

import mlx.core as mx
import pytest

from tests.models.decoding import NUM_STEPS
from tests.models.families import FAMILIES
from tests.models.parity.equality import assert_bit_equal, load_path
from tests.models.stepping import greedy
from tests.support.tiny_families import write_family

pytestmark = [
    # mlx-lm brings transformers, and both warn of things that are theirs.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

NUM_TOKENS = 24


def prompt_of(num_tokens: int, seed: int = 7) -> list[int]:
    mx.random.seed(seed)
    return [int(token) for token in mx.random.randint(0, 256, (num_tokens,)).tolist()]  # pyright: ignore[reportGeneralTypeIssues]


@pytest.mark.parametrize("num_prompt_tokens", [1, 48])
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_mlx_lm(tmp_path: Path, name: str, num_prompt_tokens: int) -> None:
    from tests.models.parity.mlx_lm_oracle import greedy_logits

    folder, prompt = write_family(tmp_path / "tiny", FAMILIES[name]), prompt_of(num_prompt_tokens)
    ours = list(greedy(load_path(folder), prompt, NUM_TOKENS))
    assert_bit_equal(ours, greedy_logits(folder, prompt, NUM_TOKENS))


@pytest.mark.parametrize("name", ["qwen3_moe 4-bit", "gemma4 experts 4-bit wrapped", "qwen3_5_moe 4-bit"])
def test_logits_of_a_long_decode_with_experts_are_those_of_mlx_lm(tmp_path: Path, name: str) -> None:
    from tests.models.parity.mlx_lm_oracle import greedy_logits

    folder, prompt = write_family(tmp_path / "tiny", FAMILIES[name]), prompt_of(30, seed=11)
    ours = list(greedy(load_path(folder), prompt, NUM_STEPS))
    assert_bit_equal(ours, greedy_logits(folder, prompt, NUM_STEPS))
