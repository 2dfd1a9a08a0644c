"""The process of one pull: `python -P -m gateway.hub`.

Its order comes on the settings descriptor, so that nothing of it stands in the list of processes; a token comes from
the environment or from where huggingface_hub stores one. What it says goes to standard output, a line of JSON each. It
ends with the process that started it, and being killed at any moment costs nothing that has come.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import threading

from gateway.hub.messages import Failed, Message, Order, write_message
from gateway.process import LIFELINE_FD, SETTINGS_FD

EXIT_FAILED = 3
# Of addresses; what a pull holds of a file at once is a few MiB.
MAX_MEMORY_BYTES = 4 * 1024 * 1024 * 1024


def main() -> int:
    """Pull, and return the exit code."""
    threading.Thread(target=_end_with_parent, name="lifeline", daemon=True).start()
    _limit()
    with os.fdopen(SETTINGS_FD, "rb") as settings:
        order = Order(**json.loads(settings.read()))
    from gateway.hub.pull import pull  # noqa: PLC0415  (brings huggingface_hub, once the lifeline is watched)

    try:
        _tell(pull(order, _tell))
    except Failed as failed:
        _tell(failed)
        return EXIT_FAILED
    return 0


def _tell(message: Message) -> None:
    sys.stdout.write(write_message(message) + "\n")
    sys.stdout.flush()


def _end_with_parent() -> None:
    while os.read(LIFELINE_FD, 64):
        pass
    os._exit(LIFELINE_FD)


def _limit() -> None:
    for kind, limit in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_AS, MAX_MEMORY_BYTES)):
        with contextlib.suppress(OSError, ValueError):  # not every system has each of them
            resource.setrlimit(kind, (limit, limit))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # threads that still wait for the hub are of no more use
