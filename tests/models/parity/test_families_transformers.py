"""Both paths give transformers' logits within a bound, in float32; transformers' own are stored.

The bound is of sums in another order: logits reach a few units, and what is wrong shows in the first digit.
"""

from pathlib import Path

import numpy as np
import pytest

from models.checkpoint.checkpoint import open_checkpoint
from models.registry import load
from models.step import NumericPath
from tests.models.parity.golden.table import GOLDEN, NUM_KEPT, PROMPT
from tests.models.stepping import step_logits
from tests.support.tiny_families import write_family

STORED = np.load(Path(__file__).parent / "golden" / "transformers.npz")
MAX_DIFFERENCE = 5e-5


@pytest.mark.parametrize("path", NumericPath)
@pytest.mark.parametrize("name", GOLDEN)
def test_logits_are_those_of_transformers(tmp_path: Path, name: str, path: NumericPath) -> None:
    loaded = load(open_checkpoint(write_family(tmp_path / "tiny", GOLDEN[name])), path, lambda _: None)
    kept = tuple(range(len(PROMPT) - NUM_KEPT, len(PROMPT)))
    logits = np.array(step_logits(loaded, loaded.make_cache(1), tuple(PROMPT), kept))
    assert np.abs(logits - STORED[name]).max() < MAX_DIFFERENCE
