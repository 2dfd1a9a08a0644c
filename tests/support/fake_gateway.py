"""The real gateway with fake workers, as a process: `python -P fake_gateway.py SETTINGS.toml`."""

import sys
from functools import partial
from pathlib import Path
from unittest import mock

import uvloop

from gateway import server
from gateway.settings import load_settings

FAKE_WORKER = Path(__file__).parent / "fake_worker.py"


def announce(address: str) -> None:
    sys.stdout.write(f"listening on {address}\n")
    sys.stdout.flush()


def main() -> None:
    command = (sys.executable, "-P", str(FAKE_WORKER))
    with mock.patch.object(server, "Gateway", partial(server.Gateway, worker_command=command)):
        uvloop.run(server.serve(load_settings(Path(sys.argv[1])), announce))


if __name__ == "__main__":
    main()
