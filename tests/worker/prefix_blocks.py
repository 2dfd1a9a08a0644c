"""Blocks in the prefix cache's files, each following none, and the files themselves."""

import subprocess
import sys
from pathlib import Path

from tests.worker.prefix_parts import NO_LIMIT, Memory, block, content, content_of
from worker.prefix_store import PrefixStore

ROOT = Path(__file__).parents[2]


def make_store(folder: Path, max_bytes: int = NO_LIMIT, fingerprint: str = "weights 1") -> PrefixStore:
    return PrefixStore(folder, max_bytes, Memory().codec(fingerprint))


def put(store: PrefixStore, index: int, num_bytes: int = 100, namespace: str = "a") -> bytes:
    """Write a block that follows none; return its name."""
    name = store.child(store.root(namespace), block(index))
    part = Memory().part(content(namespace, [index], num_bytes))
    assert store.put(name, block(index), part)
    assert store.drain(5)
    return name


def get(store: PrefixStore, index: int, namespace: str = "a") -> bytes | None:
    """Read such a block."""
    part = store.get(store.child(store.root(namespace), block(index)), block(index), lambda _: True)
    return None if part is None else content_of(part)


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def nbytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in files(folder))


def only_file(folder: Path) -> Path:
    (path,) = files(folder)
    return path


def child(folder: Path, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.worker.prefix_child", str(folder), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
