"""Making a model and an adapter one, from two folders to a third."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from models.adapters.adapter import open_adapter
from models.checkpoint.checkpoint import open_checkpoint
from models.checkpoint.errors import CheckpointRejected
from models.fusing.comparison import Comparison, compare, logits_of, logits_of_mounted
from models.fusing.plan import FusePlan, plan_fuse
from models.fusing.writing import ReportPhase, put_in_place, unfinished, write_fused
from models.registry import adapter_targets


@dataclass(frozen=True, slots=True)
class Fused:
    """A folder that is there, how it was found, and which adapter is in it."""

    plan: FusePlan
    comparison: Comparison
    revision: str
    num_skipped: int


def fuse(
    folder: Path,
    adapter: Path,
    path: Path,
    on_plan: Callable[[FusePlan], None],
    report: ReportPhase,
    *,
    packs_again: bool = False,
) -> Fused:
    """Write the model of a folder with an adapter in its weights.

    What was written is loaded and compared with the model that has the adapter mounted, before it gets its name. At
    most one model is in memory at a time.

    Args:
        folder: of the checkpoint.
        adapter: its folder.
        path: the folder to make.
        on_plan: told what will be written, before anything is.
        report: called while it is done.
        packs_again: whether layers of MLX's affine packing are packed as they were.

    Raises:
        CheckpointError: the checkpoint cannot be used.
        AdapterError: the adapter cannot, or is not made for it.
        FuseError: nothing was made, by name.
    """
    checkpoint = open_checkpoint(folder)
    if checkpoint.format != "safetensors":
        problem = "is no folder of safetensors files, and only those are fused"
        raise CheckpointRejected(problem, file=checkpoint.name)
    header = open_adapter(adapter, adapter_targets(checkpoint))
    plan = plan_fuse(folder, checkpoint, header, path, packs_again=packs_again)
    on_plan(plan)
    numbers = header.read()
    with unfinished(path) as partial:
        write_fused(plan, numbers, partial, report)
        report("comparing", 0, 2)
        mounted = logits_of_mounted(folder, numbers)
        report("comparing", 1, 2)
        comparison = compare(mounted, logits_of(partial))
        report("comparing", 2, 2)
        comparison.check()
        put_in_place(plan, partial)
    return Fused(plan, comparison, numbers.revision, numbers.num_skipped)
