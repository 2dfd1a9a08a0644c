"""A process that computes in ticks as an engine does, in turns where it has a line, and notes when it had the device.

Run as a program, never imported: `python -P turn_player.py NOTES TICK_S CLAIM [DEVICE]`. It ends with its lifeline. It
writes a line to the file NOTES for each tick: when it began and when it ended on the device, in nanoseconds of the
monotonic clock. DEVICE is a file whose lock stands for a device that does one thing at a time, and all of it.
"""

import contextlib
import fcntl
import json
import os
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import IO

from worker.claim import Claim
from worker.turn import Alone, SharedTurn
from worker.turn_line import open_line

WAIT_S = 60.0
HOST_S = 0.0005  # between two ticks, as an engine reads results and plans


def watch_lifeline() -> None:
    while os.read(9, 64):
        pass
    os._exit(0)


@contextlib.contextmanager
def used(device: IO[str] | None) -> Generator[None]:
    if device is not None:
        fcntl.flock(device, fcntl.LOCK_EX)
    yield
    if device is not None:
        fcntl.flock(device, fcntl.LOCK_UN)


def main(notes: Path, tick_s: float, claim: Claim, device: Path | None) -> None:
    threading.Thread(target=watch_lifeline, daemon=True).start()
    line, woken = open_line(), threading.Semaphore(0)
    turn = Alone() if line is None else SharedTurn(line, lambda: None)
    turn.begin(woken.release)
    opened = None if device is None else device.open("a")
    with notes.open("a", buffering=1) as file:
        while True:
            if not turn.take(lambda: claim):
                woken.acquire(timeout=WAIT_S)
                continue
            burst_s = turn.burst_s
            with used(opened):
                begin_ns = time.monotonic_ns()
                time.sleep(tick_s if burst_s is None else min(tick_s, burst_s))
                end_ns = time.monotonic_ns()
            file.write(json.dumps([begin_ns, end_ns]) + "\n")
            turn.give(lambda: claim)
            time.sleep(HOST_S)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), Claim[sys.argv[3]], Path(sys.argv[4]) if sys.argv[4:] else None)
