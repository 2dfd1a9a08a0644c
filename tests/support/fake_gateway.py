"""The real gateway with fake workers, as a process: `python -P fake_gateway.py SETTINGS.toml [DEFECT]`.

A defect is one that a harness must catch:

    keep:BYTES      every request that has ended is kept for ever, with so many bytes
    leak:BYTES      every unload leaves so many bytes, an open file and a thread
    stray:N         every n-th call goes to a worker of another model, where there is one
    jump:SECONDS    the clock of the day jumps so far back and forth each time that the gateway reads it
"""

import itertools
import os
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import uvloop

from gateway import serving
from gateway.requests import Request, Requests
from gateway.settings import load_settings
from gateway.workers import Workers

FAKE_WORKER = Path(__file__).parent / "fake_worker.py"
kept: list[object] = []


def announce(address: str) -> None:
    sys.stdout.write(f"listening on {address}\n")
    sys.stdout.flush()


def keep(num_bytes: int) -> None:
    remove = Requests.remove

    def kept_removal(self: Requests, request: Request) -> None:
        remove(self, request)
        kept.append((request, os.urandom(num_bytes)))

    mock.patch.object(Requests, "remove", kept_removal).start()


def leak(num_bytes: int) -> None:
    unload = Workers.unload

    async def leaking(self: Workers, *arguments: Any) -> int:
        kept.append((os.urandom(num_bytes), os.open(os.devnull, os.O_RDONLY)))
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        return await unload(self, *arguments)

    mock.patch.object(Workers, "unload", leaking).start()


def stray(every: int) -> None:
    acquire, count, models = Workers.acquire, itertools.count(1), dict[str, None]()

    async def straying(self: Workers, model: str, *arguments: Any) -> Any:
        models[model] = None
        if next(count) % every == 0:
            model = next((other for other in models if other != model), model)
        return await acquire(self, model, *arguments)

    mock.patch.object(Workers, "acquire", straying).start()


def jump(seconds: int) -> None:
    """Have the gateway's own modules read it; the library takes its deadlines from the clock that the system has."""
    jumps = itertools.cycle((0, seconds, -seconds))
    jumping = mock.Mock(wraps=time)
    jumping.time.side_effect = lambda: time.time() + next(jumps)
    for name, module in sys.modules.items():
        if name.startswith("gateway.") and getattr(module, "time", None) is time:
            mock.patch.object(module, "time", jumping).start()


DEFECTS = {"keep": keep, "leak": leak, "stray": stray, "jump": jump}


def main() -> None:
    command = (sys.executable, "-P", str(FAKE_WORKER))
    for told in sys.argv[2:]:
        name, _, number = told.partition(":")
        DEFECTS[name](int(number))
    with mock.patch.object(serving, "Gateway", partial(serving.Gateway, worker_command=command)):
        uvloop.run(serving.serve(load_settings(Path(sys.argv[1])), announce))


if __name__ == "__main__":
    main()
