"""The reference path gives mlx-lm's logits bit for bit, for every kind of checkpoint that Llama covers."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from tests.models.parity.equality import assert_bit_equal, load_path
from tests.models.stepping import greedy
from tests.models.variants import VARIANTS, WINDOWED
from tests.support.tiny_models import write_llama

pytestmark = [
    # mlx-lm brings transformers, and both warn of things that are theirs.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

NUM_TOKENS = 64


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


@pytest.mark.parametrize("num_tokens", [10, 24, 25, 90])
@pytest.mark.parametrize("variant", WINDOWED.values(), ids=WINDOWED.keys())
def test_logits_within_windows_are_those_of_mlx_lm(tmp_path: Path, variant: dict[str, Any], num_tokens: int) -> None:
    assert_parity(write_llama(tmp_path / "tiny", **variant), prompt_of(num_tokens))
