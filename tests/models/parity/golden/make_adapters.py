"""Writes what PEFT computes of a tiny Llama behind tiny adapters, in float32.

`python -m tests.models.parity.golden.make_adapters OUT` needs torch, transformers 5.24 and PEFT 0.21, which the tests
do not: run it where they are, with MLX beside them, whenever the table changes. For each adapter it keeps the logits at
the last positions of one prompt.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch  # pyright: ignore[reportMissingImports] - the tests do without it
from peft import PeftModel  # pyright: ignore[reportMissingImports]
from transformers import AutoModelForCausalLM

from tests.models.parity.golden.adapters import ADAPTERS, NUM_KEPT, PROMPT, write_golden, write_model


def main(out: Path) -> None:
    """Write one file with an array for each adapter."""
    found: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = write_model(Path(folder) / "tiny")
        for name in ADAPTERS:
            base = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
            model = PeftModel.from_pretrained(base, str(write_golden(Path(folder) / name, name))).eval()
            with torch.no_grad():
                found[name] = model(torch.tensor([PROMPT])).logits[0, -NUM_KEPT:].float().numpy()
    np.savez_compressed(out, allow_pickle=False, **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
