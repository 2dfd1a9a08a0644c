"""Both paths behind an adapter give PEFT's logits within a bound, in float32; PEFT's own are stored."""

from pathlib import Path

import numpy as np
import pytest

from models.step import AdapterUse, NumericPath
from tests.models.adapters.mounting import mount
from tests.models.parity.equality import load_path
from tests.models.parity.golden.adapters import ADAPTERS, NUM_KEPT, PROMPT, write_golden, write_model
from tests.models.stepping import step_logits

STORED = np.load(Path(__file__).parent / "golden" / "peft.npz")
MAX_DIFFERENCE = 5e-5


@pytest.mark.parametrize("path", NumericPath)
@pytest.mark.parametrize("name", ADAPTERS)
def test_logits_are_those_of_peft(tmp_path: Path, name: str, path: NumericPath) -> None:
    loaded = load_path(write_model(tmp_path / "tiny"), path)
    use = AdapterUse(mount(loaded, write_golden(tmp_path / "adapter", name)))
    kept = tuple(range(len(PROMPT) - NUM_KEPT, len(PROMPT)))
    logits = np.array(step_logits(loaded, loaded.make_cache(1), tuple(PROMPT), kept, adapters=(use,)))
    plain = np.array(step_logits(loaded, loaded.make_cache(1), tuple(PROMPT), kept))
    assert np.abs(logits - plain).max() > 0.1
    assert np.abs(logits - STORED[name]).max() < MAX_DIFFERENCE
