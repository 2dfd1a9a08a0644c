"""Writes what transformers computes of the tiny checkpoints, in float32.

`python -m tests.models.parity.golden.make OUT` needs torch and transformers 5.24, which the tests do not: run it where
both are, with MLX beside them, whenever the table changes. For each checkpoint it keeps the logits at the last
positions of one prompt.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch  # pyright: ignore[reportMissingImports] - the tests do without it
from transformers import AutoModelForCausalLM

from tests.models.parity.golden.table import GOLDEN, NUM_KEPT, PROMPT
from tests.support.tiny_families import write_family


def main(out: Path) -> None:
    """Write one file with an array for each checkpoint."""
    found: dict[str, np.ndarray] = {}
    for name, tiny in GOLDEN.items():
        with tempfile.TemporaryDirectory() as folder:
            path = write_family(Path(folder) / "tiny", tiny)
            model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
            with torch.no_grad():
                logits = model(torch.tensor([PROMPT])).logits[0, -NUM_KEPT:]
        found[name] = logits.float().numpy()
    np.savez_compressed(out, allow_pickle=False, **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
