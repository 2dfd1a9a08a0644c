"""The folders, file sizes and spawn points that `docs/` and the README promise."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("gateway", "worker", "models", "native", "protos/pomona")
GENERATED = "protos/pomona/v1"
MAX_LINES = 400
SPAWNERS = {"gateway/process.py", "worker/child.py", "worker/turn.py"}
SPAWN_NAMES = {"posix_spawn", "posix_spawnp", "fork", "forkpty", "execv", "execve", "Popen", "create_subprocess_exec"}


def python_files() -> list[Path]:
    written = (path for folder in SOURCES for path in (ROOT / folder).rglob("*.py"))
    return sorted(path for path in written if not path.is_relative_to(ROOT / GENERATED))


def names_used(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    sources = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return attributes | modules | sources


@pytest.mark.parametrize("path", python_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_holds_one_noun_at_a_readable_size(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_LINES


def test_no_folder_is_a_drawer_for_leftovers() -> None:
    names = {path.stem for path in python_files()} | {path.parent.name for path in python_files()}
    assert not names & {"utils", "util", "common", "helpers", "misc", "base", "impl", "manager"}


def test_only_two_modules_spawn_processes() -> None:
    spawning = {
        str(path.relative_to(ROOT))
        for path in python_files()
        if names_used(path) & (SPAWN_NAMES | {"subprocess", "multiprocessing"})
    }
    assert spawning <= SPAWNERS


def test_only_settings_read_the_environment() -> None:
    readers = {path.name for path in python_files() if names_used(path) & {"environ", "getenv"}}
    assert readers <= {"settings.py"}


def test_no_thread_but_the_engines_computes() -> None:
    starters = {
        str(path.relative_to(ROOT))
        for path in python_files()
        if "Thread" in names_used(path) and "worker" in path.parts
    }
    waiters = {"worker/lifeline.py", "worker/prefix_writer.py", "worker/child.py", "worker/turn.py"}
    assert starters <= {"worker/engine.py", *waiters}


def test_no_work_is_done_at_import_of_the_contract_faces() -> None:
    code = (
        "import sys, gateway, worker, models, native, models.step, pomona; "
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'mlx', 'grpc', 'numpy'}))"
    )
    result = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert result.stdout.strip() == "[]"


def test_the_gateway_imports_without_mlx() -> None:
    code = (
        "import sys; sys.modules['mlx'] = None; sys.modules['numpy'] = None; sys.modules['tokenizers'] = None; "
        "import gateway.server, gateway.__main__, gateway.workers; print('ok')"
    )
    result = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False, timeout=30)
    assert (result.stdout.strip(), result.stderr) == ("ok", "")
