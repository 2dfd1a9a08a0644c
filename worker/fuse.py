"""Writing a checkpoint with an adapter in its weights: the one-shot `fuse`.

It prints lines of JSON: {"plan": …} before anything is written, {"progress": …} a few times a second, and at the end
{"fused": …}, or as other one-shots {"reason", "message", "metadata"} with exit code 3. Asked to end by SIGTERM, it
leaves nothing unfinished behind.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from models.adapters.errors import AdapterError
from models.checkpoint.errors import CheckpointError
from models.fusing.errors import FuseError, FuseInterrupted
from models.fusing.fuse import Fused, fuse
from models.fusing.plan import FusePlan
from worker.long_one_shot import Progress, raise_when_asked_to_end, say
from worker.one_shot import EXIT_USAGE, refuse


@dataclass(frozen=True, slots=True)
class FuseSettings:
    """What is to be fused with a checkpoint, and where it goes."""

    adapter: Path
    output: Path
    packs_again: bool


def main(argv: Sequence[str], now: Callable[[], float] = time.monotonic) -> int:
    """Fuse the checkpoint at `argv[0]` as the settings at `argv[1]` say; return the exit code.

    Args:
        argv: the checkpoint's folder, and JSON: {"adapter": path, "output": path, "packs_again": false}.
        now: monotonic time in seconds.
    """
    settings = _settings(argv[1]) if len(argv) == 2 else None
    if settings is None:
        sys.stderr.write(
            'usage: python -P -m worker fuse PATH {"adapter": PATH, "output": PATH, "packs_again": BOOL}\n'
        )
        return EXIT_USAGE
    raise_when_asked_to_end(FuseInterrupted)
    try:
        fused = fuse(
            Path(argv[0]),
            settings.adapter,
            settings.output,
            lambda plan: say("plan", _planned(plan)),
            Progress(now, "done", "total"),
            packs_again=settings.packs_again,
        )
    except (CheckpointError, AdapterError, FuseError) as error:
        return refuse(error.reason, str(error), error.metadata)
    say("fused", _facts(fused))
    return 0


def _planned(plan: FusePlan) -> dict[str, Any]:
    return {
        "path": str(plan.path),
        "layers": len(plan.layers),
        "unpackedLayers": plan.num_unpacked,
        "packedLayers": plan.num_packed,
        "bytesTotal": plan.nbytes,
        "neededBytes": plan.needed_bytes,
        "freeBytes": plan.free_bytes,
    }


def _facts(fused: Fused) -> dict[str, Any]:
    plan, comparison = fused.plan, fused.comparison
    return {
        "path": str(plan.path),
        "layers": len(plan.layers),
        "unpackedLayers": plan.num_unpacked,
        "packedLayers": plan.num_packed,
        "bytesTotal": plan.nbytes,
        "adapterRevision": fused.revision,
        "skippedTensors": fused.num_skipped,
        "effect": comparison.effect,
        "difference": comparison.difference,
        "comparedTokens": comparison.num_tokens,
        "agreeingTokens": comparison.num_agreeing,
    }


def _settings(text: str) -> FuseSettings | None:
    try:
        said: object = json.loads(text)
    except ValueError:
        return None
    if not isinstance(said, dict):
        return None
    given = cast("dict[str, object]", said)
    adapter, output, packs_again = given.get("adapter"), given.get("output"), given.get("packs_again", False)
    if not given.keys() <= {"adapter", "output", "packs_again"} or not isinstance(packs_again, bool):
        return None
    if not isinstance(adapter, str) or not isinstance(output, str) or not output.startswith("/"):
        return None
    return FuseSettings(Path(adapter), Path(output), packs_again)
