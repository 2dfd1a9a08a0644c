"""What `docs/embeddings.md` says: its examples as they stand, and its limits."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.page import Page, run_node, run_pomona, run_python
from tests.support.served import Served, served
from tests.support.tiny_embedders import write_embedder, write_reranker
from worker.embedding.bounds import MAX_INPUTS
from worker.prompting import MAX_TEXT_BYTES

PAGE = Page("embeddings.md")
SCORE = r"-?\d\.\d{3} "
PYTHON = (
    rf"{SCORE}Cats sleep on mats\.\n{SCORE}Fish swim\.\n({SCORE}(Fish swim|Cats sleep on mats|Dogs sleep too)\.\n){{2}}"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose settings are those of the page, with tiny checkpoints in the places that it names."""
    folder = tmp_path_factory.mktemp("models")
    (told,) = PAGE.blocks("toml")
    makers = {"qwen3-embedding": write_embedder, "qwen3-reranker": write_reranker}
    for model in tomllib.loads(told)["models"]:
        makers[model["name"]](folder / model["checkpoint"])
    settings = folder / "pomona.toml"
    settings.write_text(told.replace('checkpoint = "', f'checkpoint = "{folder}/'))
    with served("--settings", str(settings)) as running:
        yield running


def test_python_examples_run_as_they_stand(server: Served, tmp_path: Path) -> None:
    printed = run_python(server.address, tmp_path, *PAGE.blocks("python"))
    assert re.fullmatch(PYTHON, printed), printed


def test_node_example_runs_as_it_stands(server: Served, tmp_path: Path) -> None:
    assert run_node(server.address, tmp_path, *PAGE.blocks("js")) == "32 values of 20 tokens\n"


def test_commands_run_as_they_stand(server: Served, tmp_path: Path) -> None:
    (commands,) = PAGE.blocks("sh")
    for line in commands.splitlines():
        printed = run_pomona(server.address, tmp_path, *shlex.split(line, comments=True)[1:])
        assert "Cats sleep on mats." in printed or "Where do cats sleep?" in printed


@pytest.mark.parametrize("limit", [f"({MAX_INPUTS:,}, or", f"no text may be over {MAX_TEXT_BYTES >> 20} MiB"])
def test_every_limit_is_told(limit: str) -> None:
    assert limit in PAGE.words
