"""What `docs/adapters.md` says: its settings and examples as they stand, with a model that `make setup` installs."""

import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.page import Page, run_pomona, run_python
from tests.support.served import Served, demo_checkpoint, served

pytestmark = pytest.mark.real

PAGE = Page("adapters.md")
TRAINED = Path(__file__).parents[1] / "support" / "trained"
PYTHON = r"support: 24 layers of rank 2\n.+\nsupport@[0-9a-f]{12}, scale 1\nterse@[0-9a-f]{12}, scale 0.5\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose settings are those of the page, with trained adapters under the names that it uses."""
    folder = tmp_path_factory.mktemp("models")
    (told,) = PAGE.blocks("toml")
    (model,) = tomllib.loads(told)["models"]
    for name, habit in {"formal": "ahoy", "org/terse-v2": "over", "org/support-v3": "ahoy"}.items():
        shutil.copytree(TRAINED / habit, folder / model["adapters_folder"] / name)
    settings = folder / "pomona.toml"
    told = told.replace(f'"{model["checkpoint"]}"', f'"{demo_checkpoint()}"')
    settings.write_text(told.replace('adapters_folder = "', f'adapters_folder = "{folder}/'))
    with served("--settings", str(settings)) as running:
        yield running


def test_python_example_runs_as_it_stands(server: Served, tmp_path: Path) -> None:
    printed = run_python(server.address, tmp_path, *PAGE.blocks("python"))
    assert re.fullmatch(PYTHON, printed, re.DOTALL), printed


def test_commands_run_as_they_stand(server: Served, tmp_path: Path) -> None:
    (commands,) = PAGE.blocks("sh")
    lines = [shlex.split(line, comments=True)[1:] for line in commands.splitlines()]
    printed = {line[0] + " " + line[1]: run_pomona(server.address, tmp_path, *line) for line in lines if len(line) > 2}
    assert "24 layers of rank 2" in printed["adapters load"]
    assert "org/support-v3" in printed["adapters list"]
    assert printed["chat smol"].strip()
    assert "support is unloaded" in printed["adapters unload"]
