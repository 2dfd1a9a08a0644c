"""From a checkpoint to a model of mlx-lm's."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx

from models.borrowed.model import BorrowedModel
from models.checkpoint.checkpoint import Checkpoint
from models.checkpoint.errors import CheckpointError, CheckpointRejected
from models.checkpoint.shards import ReportBytes
from models.checkpoint.text_config import CONFIG_FILE

_BATCH_BYTES = 16 << 20
# What code that reads strange files ends with.
_FAILURES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NotImplementedError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
_log = logging.getLogger(__name__)


def load_borrowed(
    checkpoint: Checkpoint, dtype: mx.Dtype | None, report: ReportBytes, *, compiles: bool
) -> tuple[BorrowedModel, int]:
    """Read a checkpoint into memory, and have mlx-lm make its model.

    No code of the checkpoint is run: mlx-lm is not allowed to, and configs that name some were refused before.

    Args:
        checkpoint: its headers, already checked.
        dtype: what floating tensors become; None: they stay as they are stored.
        report: called with (bytes done, bytes in all) at the start and after every 16 MiB or so.
        compiles: whether mlx-lm's compiled parts are compiled.

    Returns:
        The model, and the bytes that its weights take.

    Raises:
        CheckpointRejected: mlx-lm does not make a model of it.
    """
    folder = next(iter(checkpoint.tensors.values())).file.parent
    try:
        graph = _graph(folder, dtype)
        make_caches = _cache_maker(graph)
        num_bytes = _materialize(graph, report)
        word = f"mlx-lm {version('mlx-lm')} {checkpoint.architecture}"
        return BorrowedModel(graph, make_caches, word, compiles=compiles), num_bytes
    except CheckpointError:
        raise
    except _FAILURES as error:
        _log.warning("mlx-lm does not load the checkpoint", exc_info=error)
        problem = f"mlx-lm makes no model of it ({type(error).__name__})"
        raise CheckpointRejected(problem, file=CONFIG_FILE, key="model_type") from error


def _graph(folder: Path, dtype: mx.Dtype | None) -> Any:
    utils: Any = importlib.import_module("mlx_lm.utils")
    graph, _ = utils.load_model(folder, lazy=True, strict=True, trust_remote_code=False)
    if dtype is not None:
        graph.set_dtype(dtype)
    return graph


def _cache_maker(graph: Any) -> Callable[[], list[Any]]:
    caches: Any = importlib.import_module("mlx_lm.models.cache")
    return lambda: caches.make_prompt_cache(graph)


def _materialize(graph: Any, report: ReportBytes) -> int:
    """Read all weights, some at a time; return their bytes."""
    tree: Any = importlib.import_module("mlx.utils")
    arrays: list[mx.array] = [array for _, array in tree.tree_flatten(graph.parameters())]
    total, done = sum(array.nbytes for array in arrays), 0
    report(done, total)
    batch: list[mx.array] = []
    for array in arrays:
        batch.append(array)
        if sum(waiting.nbytes for waiting in batch) >= _BATCH_BYTES:
            mx.eval(batch)  # pyright: ignore[reportUnknownMemberType]
            done += sum(waiting.nbytes for waiting in batch)
            batch.clear()
            report(done, total)
    mx.eval(batch)  # pyright: ignore[reportUnknownMemberType]
    report(total, total)
    return total
