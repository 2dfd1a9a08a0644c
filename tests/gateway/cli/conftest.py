"""A command line in this process, and servers for it to talk to."""

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from typer.testing import CliRunner, Result

from gateway.cli.app import app
from tests.support.scripted_server import ScriptedServer

Run = Callable[..., Result]


def start(*arguments: str) -> "subprocess.Popen[str]":
    """Start the command as a process, for tests that read it while it runs or send it signals."""
    command = [sys.executable, "-P", "-m", "gateway", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as started:
        yield started


@pytest.fixture
def run(server: ScriptedServer) -> Run:
    def run(*arguments: str, stdin: str | None = None, address: str | None = None, ca: str | None = None) -> Result:
        environment = {
            "POMONA_SERVER": address or server.address,
            "POMONA_CA": ca,
            "POMONA_TOKEN": None,
            "NO_COLOR": "1",
        }
        return CliRunner().invoke(app, list(arguments), input=stdin, env=environment)

    return run
