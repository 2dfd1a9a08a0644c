"""A fusing that is watched: what is taken of what it says, and how it ends."""

import asyncio
import io
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import ModelLoadFailed
from gateway.fusing import FuseOrder, Fuser, FuseRefused
from gateway.logs import LogRing, make_log
from gateway.process import Command

LOG = make_log(LogRing(8), "error", "console", io.StringIO())
ORDER = FuseOrder("tiny", Path("/model"), Path("/adapter"), Path("/out"))
Heard = list[tuple[str, Mapping[str, Any]]]


def fuser(code: str, **limits: Any) -> Fuser:
    """Return what runs a script in place of a worker."""
    return Fuser(Command((sys.executable, "-P", "-c", code), dict(os.environ)), LOG, **limits)


async def heard(code: str, **limits: Any) -> Heard:
    messages: Heard = []
    await fuser(code, **limits).run(ORDER, lambda what, facts: messages.append((what, facts)))
    return messages


async def test_all_that_is_said_is_passed_on() -> None:
    code = "print('{\"plan\": {\"a\": 1}}'); print('no json'); print('{\"other\": {}}'); print('{\"fused\": {}}')"
    assert await heard(code) == [("plan", {"a": 1}), ("fused", {})]


async def test_the_folders_are_told() -> None:
    messages = await heard("import json, sys; print(json.dumps({'fused': {'argv': sys.argv[1:]}}))")
    settings = '{"adapter": "/adapter", "output": "/out", "packs_again": false}'
    assert messages == [("fused", {"argv": ["/model", settings]})]


async def test_a_refusal_is_raised_with_its_facts() -> None:
    code = 'print(\'{"reason": "DISK_FULL", "message": "no room", "metadata": {"freeBytes": 7}}\'); raise SystemExit(3)'
    with pytest.raises(FuseRefused, match="no room") as caught:
        await heard(code)
    assert (caught.value.reason, caught.value.metadata) == ("DISK_FULL", {"freeBytes": "7"})


@pytest.mark.parametrize("code", ["raise SystemExit(1)", "print('{\"plan\": {}}')", "import os; os.abort()"])
async def test_an_end_without_a_word_is_a_failure(code: str) -> None:
    with pytest.raises(ModelLoadFailed, match="could not be fused"):
        await heard(code)


async def test_a_program_that_is_not_there_is_a_failure() -> None:
    absent = Fuser(Command(("/absent/program",), {}), LOG)
    with pytest.raises(ModelLoadFailed, match="no process could be started"):
        await absent.run(ORDER, lambda *_: None)


async def test_to_cancel_asks_it_to_end(tmp_path: Path) -> None:
    code = (
        "import pathlib, signal, sys, time\n"
        f"def end(*_): pathlib.Path({str(tmp_path / 'asked')!r}).touch(); sys.exit(3)\n"
        "signal.signal(signal.SIGTERM, end); print('{\"plan\": {}}', flush=True); time.sleep(60)"
    )
    begun = asyncio.Event()
    running = asyncio.create_task(fuser(code).run(ORDER, lambda *_: begun.set()))
    await asyncio.wait_for(begun.wait(), 30)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (tmp_path / "asked").exists()


async def test_one_that_says_nothing_for_too_long_is_ended() -> None:
    with pytest.raises(ModelLoadFailed):
        await heard("import time; time.sleep(60)", silence_limit_s=0.1)
