"""Work that is watched: what is taken of what is said of it, and how it ends."""

import asyncio
import io
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import ModelLoadFailed
from gateway.logs import LogRing, make_log
from gateway.process import Command
from gateway.watched_one_shot import FUSE, PACK, OneShotRefused, WatchedOneShot, Work

LOG = make_log(LogRing(8), "error", "console", io.StringIO())
Heard = list[tuple[str, Mapping[str, Any]]]


def watched(code: str, work: Work = PACK, **limits: Any) -> WatchedOneShot:
    """Return what runs a script in place of a worker."""
    return WatchedOneShot(work, Command((sys.executable, "-P", "-c", code), dict(os.environ)), LOG, **limits)


async def heard(code: str, folder: Path = Path("/folder"), **limits: Any) -> Heard:
    messages: Heard = []
    await watched(code, **limits).run(
        "moe", folder, {"action": "build"}, lambda what, facts: messages.append((what, facts))
    )
    return messages


async def test_all_that_is_said_is_passed_on() -> None:
    code = (
        "import sys; print('{\"plan\": {\"a\": 1}}'); print('no json'); print('{\"other\": {}}')\n"
        'print(\'{"progress": {"b": 2}}\'); print(\'{"pack": {"argv": \' + str(len(sys.argv)) + \'}}\')'
    )
    assert await heard(code) == [("plan", {"a": 1}), ("progress", {"b": 2}), ("pack", {"argv": 3})]


async def test_the_folder_and_the_settings_are_told() -> None:
    messages = await heard("import json, sys; print(json.dumps({'pack': {'argv': sys.argv[1:]}}))")
    assert messages == [("pack", {"argv": ["/folder", '{"action": "build"}']})]


async def test_a_refusal_is_raised_with_its_facts() -> None:
    code = 'print(\'{"reason": "DISK_FULL", "message": "no room", "metadata": {"freeBytes": 7}}\'); raise SystemExit(3)'
    with pytest.raises(OneShotRefused, match="no room") as caught:
        await heard(code)
    assert (caught.value.reason, caught.value.metadata) == ("DISK_FULL", {"freeBytes": "7"})


@pytest.mark.parametrize("work", [PACK, FUSE], ids=lambda work: work.verb)
@pytest.mark.parametrize("code", ["raise SystemExit(1)", "print('{\"plan\": {}}')", "import os; os.abort()"])
async def test_an_end_without_a_word_is_a_failure(code: str, work: Work) -> None:
    with pytest.raises(ModelLoadFailed, match=f"did not {work.deed}, and did not say why"):
        await watched(code, work).run("moe", Path("/folder"), {}, lambda *_: None)


async def test_the_last_message_is_the_work_s_own() -> None:
    with pytest.raises(ModelLoadFailed):
        await watched("print('{\"pack\": {}}')", FUSE).run("moe", Path("/folder"), {}, lambda *_: None)


async def test_a_program_that_is_not_there_is_a_failure() -> None:
    absent = WatchedOneShot(PACK, Command(("/absent/program",), {}), LOG)
    with pytest.raises(ModelLoadFailed, match="no process could be started"):
        await absent.run("moe", Path("/folder"), {}, lambda *_: None)


async def test_to_cancel_asks_it_to_end(tmp_path: Path) -> None:
    code = (
        "import pathlib, signal, sys, time\n"
        f"def end(*_): pathlib.Path({str(tmp_path / 'asked')!r}).touch(); sys.exit(3)\n"
        "signal.signal(signal.SIGTERM, end); print('{\"plan\": {}}', flush=True); time.sleep(60)"
    )
    begun = asyncio.Event()
    running = asyncio.create_task(watched(code).run("moe", tmp_path, {}, lambda *_: begun.set()))
    await asyncio.wait_for(begun.wait(), 30)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (tmp_path / "asked").exists()


async def test_one_that_says_nothing_for_too_long_is_ended() -> None:
    with pytest.raises(ModelLoadFailed):
        await heard("import time; time.sleep(60)", silence_limit_s=0.1)
