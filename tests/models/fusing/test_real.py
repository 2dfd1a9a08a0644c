"""A real packed model with a trained adapter in its weights."""

from pathlib import Path

import pytest

from bench import mlx_folder
from tests.models.fusing.folders import Folders
from tests.support.smollm2 import smollm2_path

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(120)]

TRAINED = Path(__file__).parents[2] / "support" / "trained"


def test_a_real_model_answers_as_with_its_adapter_mounted(tmp_path: Path) -> None:
    model = mlx_folder.write(smollm2_path(), tmp_path / "model", "as_stored")
    mlx_folder.write_tokenizer(smollm2_path(), model, "<|im_end|>")
    comparison = Folders(model, TRAINED / "over", tmp_path / "fused").fuse().comparison
    assert comparison.effect > 0.1
    assert comparison.share < 0.05
    assert comparison.num_agreeing >= comparison.num_tokens - 1
