"""What `docs/clients.md` says: its examples as they stand, one retry policy everywhere, and the files that it names.

The programs in other languages are built and run by `make test-clients`.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.page import ROOT, Page, run_python
from tests.support.served import Served, served
from tests.support.tiny_models import write_llama

PAGE = Page("clients.md")
PROGRAMS = ROOT / "docs" / "clients"
# tonic reads no service config, and pomona-client brings its own.
WITH_POLICY = {
    "python/generated.py",
    "node/example.ts",
    "go/main.go",
    "java/src/main/java/dev/pomona/example/Example.java",
    "swift/Sources/Example/Example.swift",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served("--model", f"smol={write_llama(tmp_path_factory.mktemp('models') / 'smol')}") as running:
        yield running


def at(address: str, example: str) -> str:
    """Return an example with the address of a server under test in place of the page's."""
    assert example.count('"127.0.0.1:50051"') == 1
    return example.replace("127.0.0.1:50051", address)


def test_python_examples_run_as_they_stand(server: Served, tmp_path: Path) -> None:
    short, asynchronous = PAGE.blocks("python")
    assert run_python(server.address, tmp_path, at(server.address, short))
    printed = run_python(server.address, tmp_path, at(server.address, asynchronous))
    assert printed.endswith("\n20 tokens\nMODEL_NOT_FOUND smol\n"), printed


def test_the_packages_own_page_runs_as_it_stands(server: Served, tmp_path: Path) -> None:
    text = (ROOT / "protos" / "README.md").read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert run_python(server.address, tmp_path, at(server.address, example))


@pytest.mark.parametrize("program", sorted(WITH_POLICY))
def test_programs_have_the_one_retry_policy(program: str) -> None:
    (told,) = re.findall(r'\{"methodConfig".*?"tokenRatio": 0\.1\}\}', (PROGRAMS / program).read_text(), re.DOTALL)
    assert json.loads(told) == json.loads((ROOT / "docs" / "service_config.json").read_text())


def test_the_rust_program_has_its_numbers() -> None:
    policy = json.loads((ROOT / "docs" / "service_config.json").read_text())["methodConfig"][0]["retryPolicy"]
    source = (PROGRAMS / "rust" / "src" / "main.rs").read_text()
    assert f"MAX_ATTEMPTS: u32 = {policy['maxAttempts']};" in source
    assert (
        f"INITIAL_BACKOFF: Duration = Duration::from_millis({float(policy['initialBackoff'][:-1]) * 1000:.0f});"
        in source
    )
    assert f"MAX_BACKOFF: Duration = Duration::from_secs({policy['maxBackoff'][:-1]});" in source


def test_files_that_the_page_names_are_there() -> None:
    names = set(re.findall(r"\]\(([\w./-]+)\)", PAGE.text))
    assert {name for name in names - {"../deploy/envoy.yaml"} if not (ROOT / "docs" / name).exists()} == set()
