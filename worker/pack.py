"""Writing, checking or removing the pack of a checkpoint's routed experts: the one-shot `pack`, which imports no MLX.

It prints lines of JSON: {"plan": …} before anything is written, {"stale": …} where a pack is there that does not do,
{"progress": …} a few times a second, and at the end {"pack": …}, or as other one-shots {"reason", "message",
"metadata"} with exit code 3. Asked to end by SIGTERM, it leaves nothing unfinished behind.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from models.checkpoint.errors import CheckpointError, CheckpointMissing, CheckpointRejected
from models.checkpoint.files import missing_words
from models.checkpoint.folder import read_folder_tensors
from models.experts.errors import PackBusy, PackDiskFull, PackError, PackInterrupted
from models.experts.pack import PACK_FILE, Pack, open_pack
from models.experts.pack_builder import PackPlan, build_pack, plan_pack, remove_pack
from worker.long_one_shot import Progress, raise_when_asked_to_end, say
from worker.one_shot import EXIT_USAGE, refuse

ACTIONS = ("build", "rebuild", "check", "remove")
DISK_FULL, BUSY, FAILED = "DISK_FULL", "PACK_BUSY", "PACK_FAILED"


def main(argv: Sequence[str], now: Callable[[], float] = time.monotonic) -> int:
    """Do with the pack of the checkpoint at `argv[0]` what the settings at `argv[1]` say; return the exit code.

    Args:
        argv: the checkpoint's folder, and JSON: {"action": one of `ACTIONS`}; by default `build`.
        now: monotonic time in seconds.
    """
    action = _action(argv[1] if argv[1:] else "{}")
    if len(argv) not in {1, 2} or action is None:
        sys.stderr.write('usage: python -P -m worker pack PATH [{"action": "build|rebuild|check|remove"}]\n')
        return EXIT_USAGE
    raise_when_asked_to_end(PackInterrupted)
    try:
        _run(Path(argv[0]), action, Progress(now, "bytesDone", "bytesTotal"))
    except CheckpointError as error:
        return refuse(error.reason, str(error), error.metadata)
    except PackError as error:
        return refuse(*_told(error))
    return 0


def _run(folder: Path, action: str, progress: Progress) -> None:
    _check_folder(folder)
    if action == "remove":
        say("pack", {"freedBytes": remove_pack(folder)})
        return
    plan = plan_pack(folder, read_folder_tensors(folder)[0])
    if action == "check":
        pack = open_pack(folder, plan.tensors)
        pack.check_data(lambda done, total: progress("comparing", done, total))
        say("pack", _facts(pack, is_new=False))
        return
    say("plan", _planned(plan))
    packed = build_pack(plan, progress, lambda why: say("stale", {"why": why}), force=action == "rebuild")
    say("pack", {**_facts(packed.pack, is_new=packed.is_new), "why": packed.why})


def _check_folder(folder: Path) -> None:
    """Refuse what is no folder: a GGUF file has no experts that this build reads."""
    try:
        folder.stat()
    except (OSError, ValueError) as error:
        raise CheckpointMissing(missing_words(error), file=folder.name) from error
    if not folder.is_dir():
        raise CheckpointRejected(
            "is no folder of safetensors files, and only of those there are packs", file=folder.name
        )


def _planned(plan: PackPlan) -> dict[str, Any]:
    return {
        "path": str(plan.path),
        "tensors": len(plan.tensors),
        "bytesTotal": plan.nbytes,
        "neededBytes": plan.needed_bytes,
        "freeBytes": plan.free_bytes,
    }


def _facts(pack: Pack, *, is_new: bool) -> dict[str, Any]:
    return {
        "path": str(pack.file),
        "tensors": len(pack.entries),
        "bytesTotal": pack.nbytes,
        "fileBytes": pack.identity.size_bytes,
        "isNew": is_new,
    }


def _told(error: PackError) -> tuple[str, str, dict[str, str]]:
    if isinstance(error, PackDiskFull):
        facts = {"neededBytes": str(error.needed_bytes), "freeBytes": str(error.free_bytes or 0)}
        return DISK_FULL, str(error), facts
    return BUSY if isinstance(error, PackBusy) else FAILED, str(error), {"file": PACK_FILE}


def _action(text: str) -> str | None:
    try:
        said: object = json.loads(text)
    except ValueError:
        return None
    if not isinstance(said, dict) or not said.keys() <= {"action"}:
        return None
    action = cast("dict[str, object]", said).get("action", ACTIONS[0])
    return action if isinstance(action, str) and action in ACTIONS else None
