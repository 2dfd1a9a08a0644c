"""The Dockerfile and the compose file, as far as they can be checked where no container engine runs."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.cli.app import VERBS
from tests.support.gateway_pair import ROOT

DOCKERFILE = ROOT / "deploy" / "Dockerfile"
COMPOSE = ROOT / "deploy" / "compose.yaml"
HADOLINT = shutil.which("hadolint", path=str(Path(sys.executable).parent))


def instructions() -> list[tuple[str, str]]:
    """Return each instruction of the Dockerfile with its arguments."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in lines]


def the(instruction: str) -> str:
    """Return the arguments of the last instruction of this kind, which is the one that holds."""
    return [arguments for name, arguments in instructions() if name == instruction][-1]


@pytest.mark.skipif(HADOLINT is None, reason="there is no hadolint for this machine")
def test_the_linter_finds_nothing() -> None:
    assert HADOLINT is not None
    result = subprocess.run([HADOLINT, str(DOCKERFILE)], capture_output=True, text=True, check=False, timeout=30)
    assert (result.returncode, result.stdout) == (0, "")


def test_what_is_copied_is_there_and_all_that_the_wheel_is_made_of() -> None:
    copied = [shlex.split(arguments) for name, arguments in instructions() if name == "COPY"]
    sources = {source for words in copied if not words[0].startswith("--") for source in words[:-1]}
    assert all((ROOT / source).exists() for source in sources)
    assert sources >= {"gateway", "worker", "models", "native", "protos", "pyproject.toml", "LICENSE"}


def test_it_runs_as_nobody_and_ends_by_the_signal_that_drains() -> None:
    user = the("USER").split(":")
    assert all(int(number) >= 1000 for number in user)
    assert the("STOPSIGNAL") == "SIGTERM"
    assert json.loads(the("ENTRYPOINT")) == ["pomona"]


def test_the_verbs_that_it_runs_exist() -> None:
    check = json.loads(the("HEALTHCHECK").rpartition("CMD ")[2])
    assert (check[0], check[1] in VERBS) == ("pomona", True)
    assert json.loads(the("CMD"))[0] in VERBS


def test_compose_shuts_its_gateways_in() -> None:
    told: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    gateways = [service for name, service in told["services"].items() if name.startswith("gateway-")]
    assert len(gateways) == 2
    assert told["networks"]["inside"] == {"internal": True}
    for service in gateways:
        assert (service["read_only"], service["cap_drop"], service["networks"]) == (True, ["ALL"], ["inside"])
        assert "ports" not in service
        assert service["command"][0] in VERBS


def test_compose_turns_the_addresses_of_the_envoy_file_into_its_own() -> None:
    told: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    config = (ROOT / "deploy" / "envoy.yaml").read_text()
    replacements = re.findall(r"s([/|])(.+?)\1(.+?)\1", told["services"]["envoy"]["command"][0])
    assert len(replacements) == 4
    for _, old, new in replacements:
        assert old in config, old
        config = config.replace(old, new)
    (cluster,) = yaml.safe_load(config)["static_resources"]["clusters"]
    endpoints = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
    hosts = [one["endpoint"]["address"]["socket_address"]["address"] for one in endpoints]
    assert hosts == ["gateway-a", "gateway-b"]
