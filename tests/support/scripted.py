"""Scripts for the fake worker, and what is needed to run it."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from gateway.process import Command
from gateway.worker_starter import worker_environment

FAKE_WORKER = Path(__file__).parent / "fake_worker.py"
STREAM_GENERATE = "/pomona.v1.GenerationService/StreamGenerate"
GENERATE = "/pomona.v1.GenerationService/Generate"


def fake_worker_command() -> Command:
    """Return what starts the fake worker, with the environment that a worker gets."""
    return Command((sys.executable, "-P", str(FAKE_WORKER)), worker_environment(os.environ))


def write_script(folder: Path, **script: Any) -> Path:
    """Write a script, whose events go to `events.jsonl` beside it, and return its path."""
    path = folder / "script.json"
    path.write_text(json.dumps({"events": str(folder / "events.jsonl"), **script}))
    return path


def events_in(folder: Path, event: str = "") -> list[dict[str, Any]]:
    """Return what the fake workers of a folder noted so far, of one kind where it is named."""
    path = folder / "events.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [noted for noted in map(json.loads, lines) if not event or noted["event"] == event]


def is_alive(pid: int) -> bool:
    """Say whether a process runs; one that has ended and waits to be reaped does not."""
    if Path("/proc/self/stat").exists():
        with contextlib.suppress(OSError):
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
        return False
    state = subprocess.run(["/bin/ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return state.stdout.strip()[:1] not in {"", "Z"}
