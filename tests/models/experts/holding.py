"""Loads tiny mixtures with their experts held in each way."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from models.checkpoint.checkpoint import open_checkpoint
from models.experts.options import ExpertsMode, ExpertsOptions
from models.experts.pack_builder import build_pack, plan_pack
from models.registry import LoadedModel, load
from models.step import NumericPath
from tests.models.families import GEMMA4_MOE, HYBRID_MOE, QWEN3_MOE
from tests.support.tiny_families import Tiny, write_family

MODES = tuple(ExpertsMode)
MIXTURES = {**QWEN3_MOE, **GEMMA4_MOE, **HYBRID_MOE}
# 25 MB of experts, so that they weigh beside what slabs are read through.
LARGE = Tiny("qwen3_moe", {"num_experts": 64, "moe_intermediate_size": 256})


def write_mixture(folder: Path, tiny: str | Tiny = "qwen3_moe 4-bit", *, is_packed: bool = True) -> Path:
    """Write a tiny mixture, with a pack beside it, and return its folder."""
    write_family(folder, MIXTURES[tiny] if isinstance(tiny, str) else tiny)
    if is_packed:
        build_pack(plan_pack(folder, open_checkpoint(folder).tensors), lambda phase, done, total: None)
    return folder


@contextmanager
def loaded_with(
    folder: Path, options: ExpertsOptions, path: NumericPath = NumericPath.FAST, *, cpu_kernels: bool = True
) -> Generator[LoadedModel]:
    """Load a folder, and close the model afterwards."""
    model = load(open_checkpoint(folder), path, lambda _: None, cpu_kernels=cpu_kernels, experts=options)
    try:
        yield model
    finally:
        model.close()
