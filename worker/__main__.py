"""The process that holds one model; `python -P -m worker`, started by the gateway and by nobody else.

What comes first is the lifeline: from its first line on, this process ends with the one that started it.
"""

from worker import lifeline

if __name__ == "__main__":
    lifeline.arm()

import importlib
import os
import sys
from collections.abc import Sequence

EXIT_USAGE = 2

HELP = """usage: python -P -m worker [describe | fit | pack | fuse PATH [SETTINGS] | doctor CHECK]

The worker process of Pomona: holds one model, and answers its gateway on a Unix socket.
The gateway starts it, with a lifeline on descriptor 9 and its settings, as JSON, on descriptor 10.

  describe PATH [SETTINGS]   print what a checkpoint is, as JSON, from its headers alone; SETTINGS, as JSON, may set
                             reasoning_marks, tool_dialect and task
  fit PATH [SETTINGS]        print what a worker of these settings would take of memory, as JSON, from headers alone
  fuse PATH SETTINGS         write a checkpoint with an adapter in its weights; SETTINGS, as JSON, say adapter and
                             output, two absolute paths, and may set packs_again
  pack PATH [SETTINGS]       write a checkpoint's routed experts into a pack beside it; SETTINGS, as JSON, may set
                             action: build, rebuild, check or remove
  doctor CHECK               run one check of this machine

To serve a model, run `pomona serve`.
"""


def main(arguments: Sequence[str]) -> int:
    """Run what the arguments name; without any, a worker.

    Returns:
        The exit code: 0 when told to stop, 2 for wrong use, 3 when the load failed, 70 when the engine broke,
            71 when its socket could not be made.
    """
    match list(arguments):
        case []:
            return _serve()
        case ["-h" | "--help"]:
            sys.stdout.write(HELP)
            return 0
        case ["describe" | "fit" | "pack" | "fuse" | "doctor" as verb, *rest]:
            return int(importlib.import_module(f"worker.{verb}").main(rest))  # what is not asked for costs nothing
        case _:
            sys.stderr.write(HELP)
            return EXIT_USAGE


def _serve() -> int:
    from worker.settings import SettingsError, read_settings  # noqa: PLC0415

    if not lifeline.is_given():
        sys.stderr.write("worker: no lifeline on descriptor 9; only the gateway starts workers (pomona serve)\n")
        return EXIT_USAGE
    try:
        settings = read_settings()
    except SettingsError as error:
        sys.stderr.write(f"worker: {error}\n")
        return EXIT_USAGE
    from worker.process import run  # noqa: PLC0415

    return run(settings)


if __name__ == "__main__":
    CODE = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # The model is freed by now. An ordinary exit would still wait for threads, of which a tokenizer's may take seconds.
    os._exit(CODE)
