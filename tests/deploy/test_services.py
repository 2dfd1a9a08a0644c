"""The files for systemd and launchd: what they promise of the server is what it does."""

import configparser
import plistlib
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.cli.app import app
from gateway.server import Gateway
from gateway.settings import load_settings
from tests.support.gateway_pair import ROOT

UNIT = ROOT / "deploy" / "pomona.service"
PLIST = ROOT / "deploy" / "dev.pomona.serve.plist"
COMPOSE = ROOT / "deploy" / "compose.yaml"


def unit() -> dict[str, dict[str, str]]:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(UNIT.read_text())
    return {name: dict(parser[name]) for name in parser.sections()}


def plist() -> dict[str, Any]:
    with PLIST.open("rb") as file:
        return plistlib.load(file)


@pytest.fixture
async def longest_stop_s() -> float:
    gateway = Gateway(load_settings(None, {"listen": "127.0.0.1:0"}))
    try:
        return gateway.longest_stop_s
    finally:
        await gateway.stop()


def options_of_serve() -> set[str]:
    return set(re.findall(r"--[a-z-]+", CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200"}).stdout))


async def test_both_wait_longer_than_a_stop_takes(longest_stop_s: float) -> None:
    assert int(unit()["Service"]["TimeoutStopSec"]) > longest_stop_s
    assert plist()["ExitTimeOut"] > longest_stop_s
    (compose,) = re.findall(r"stop_grace_period: (\d+)s", COMPOSE.read_text())
    assert int(compose) > longest_stop_s


def test_both_start_the_server_with_options_that_it_has() -> None:
    for command in (shlex.split(unit()["Service"]["ExecStart"]), plist()["ProgramArguments"]):
        assert (Path(command[0]).name, command[1]) == ("pomona", "serve")
        assert {word for word in command if word.startswith("--")} <= options_of_serve()


def test_a_deliberate_stop_stays_one_and_a_crash_does_not() -> None:
    service = unit()["Service"]
    assert (service["Restart"], service["Type"], service["KillMode"]) == ("on-failure", "notify", "mixed")
    assert plist()["KeepAlive"] == {"SuccessfulExit": False}
    assert plist()["ThrottleInterval"] >= 10
    assert plist()["AbandonProcessGroup"] is False


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    text = UNIT.read_text().replace("/opt/pomona/bin/pomona", "/bin/true")
    path = tmp_path / "pomona.service"
    path.write_text(text)
    result = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(path)], capture_output=True, text=True, check=False, timeout=30
    )
    told = [line for line in result.stderr.splitlines() if "pomona.service" in line]
    assert (told, result.returncode) == ([], 0)
