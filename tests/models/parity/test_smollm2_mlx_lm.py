"""A real model, from its GGUF file, gives what mlx-lm gives for the same weights in the same dtype."""

from pathlib import Path

import pytest

from bench import mlx_folder
from models.registry import LoadedModel
from models.step import NumericPath
from tests.models.parity.equality import assert_bit_equal, load_path
from tests.models.stepping import Choices, assert_same_tokens, greedy
from tests.support.smollm2 import smollm2_path

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.timeout(240),  # three hundred tokens by MLX's own product: half a minute on two idle cores
    # mlx-lm brings transformers, and both warn of things that are theirs.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

PROMPT = "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n"
NUM_TOKENS = 256
NUM_PEER_TOKENS = 64
# The two paths add float32 products in another order.
MAX_GAP = 1e-3


@pytest.fixture(scope="module")
def reference() -> LoadedModel:
    return load_path(smollm2_path())


@pytest.fixture(scope="module")
def ours(reference: LoadedModel) -> Choices:
    return list(greedy(reference, prompt_ids(reference), NUM_TOKENS))


def prompt_ids(loaded: LoadedModel) -> list[int]:
    return loaded.tokenizer.encode(PROMPT, add_special_tokens=False)


def test_logits_and_text_are_those_of_mlx_lm(tmp_path: Path, reference: LoadedModel, ours: Choices) -> None:
    from tests.models.parity.mlx_lm_oracle import greedy_text

    folder = mlx_folder.write(smollm2_path(), tmp_path, "float32")
    text, theirs = greedy_text(folder, reference.tokenizer, PROMPT, NUM_PEER_TOKENS)
    assert_bit_equal(ours[:NUM_PEER_TOKENS], theirs)
    assert b"".join(reference.tokenizer.token_bytes(token) for token, _ in ours[:NUM_PEER_TOKENS]).decode() == text
    assert "scattering" in text


def test_fast_greedy_tokens_are_those_of_the_reference(ours: Choices) -> None:
    fast = load_path(smollm2_path(), NumericPath.FAST)
    assert_same_tokens(list(greedy(fast, prompt_ids(fast), NUM_TOKENS)), ours, MAX_GAP)
