"""A fused folder is one that mlx-lm loads as well, with our logits on the reference path, bit for bit."""

from pathlib import Path
from typing import Any

import pytest

from tests.models.fusing.folders import write
from tests.models.parity.equality import assert_bit_equal, load_path
from tests.models.parity.test_families_mlx_lm import prompt_of
from tests.models.stepping import greedy

pytestmark = [
    # mlx-lm brings transformers, and both warn of things that are theirs.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

NUM_TOKENS = 16


@pytest.mark.parametrize(
    "quantization",
    [None, {"group_size": 32, "bits": 4}, {"group_size": 32, "bits": 4, "mode": "mxfp4"}],
    ids=["dense", "4-bit", "mxfp4"],
)
def test_logits_of_a_fused_folder_are_those_of_mlx_lm(tmp_path: Path, quantization: dict[str, Any] | None) -> None:
    from tests.models.parity.mlx_lm_oracle import greedy_logits

    folders, prompt = write(tmp_path, quantization), prompt_of(24)
    folders.fuse()
    ours = list(greedy(load_path(folders.output), prompt, NUM_TOKENS))
    assert_bit_equal(ours, greedy_logits(folders.output, prompt, NUM_TOKENS))
