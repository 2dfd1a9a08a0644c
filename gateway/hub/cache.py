"""The hub's cache on this machine: where it is, which models lie in it, and how one is removed.

Plain files are read and no library: a server that pulls nothing does not pay for one. The layout is huggingface_hub's,

    models--<organisation>--<name>/refs/<branch>           the commit that the branch was at
    models--<organisation>--<name>/snapshots/<commit>/     links to
    models--<organisation>--<name>/blobs/                  the files

and one file of our own beside them, `pomona.json`, which `gateway.hub.pulled` keeps. Source: the documentation of
huggingface_hub 2.4, "Understand caching".
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from gateway.catalogue import is_name
from gateway.hub.pulled import Pulled, forget, read_pulled
from gateway.hub.selection import CONFIG_FILE, CONVERTED_FILE, INDEX_FILE, is_converted_whisper

PREFIX = "models--"
MAX_CONFIG_BYTES = 4 * 1024 * 1024
# How the names of classes end that turn text or speech into text, or, with `modules.json`, into vectors.
GENERATORS = ("ForCausalLM", "ForConditionalGeneration")
MODULES_FILE = "modules.json"


@dataclass(frozen=True, slots=True)
class CachedModel:
    """One model of the cache.

    Attributes:
        name: that clients ask for.
        repository: that it came from.
        revision: the commit.
        checkpoint: its folder, or its GGUF file.
    """

    name: str
    repository: str
    revision: str
    checkpoint: Path

    def files(self) -> list[Path]:
        """Return what belongs to it: links, or the files themselves where the disk has no links."""
        if self.checkpoint.name.lower().endswith(".gguf"):
            return [self.checkpoint]
        return [path for path in self.checkpoint.rglob("*") if not path.is_dir() and path.suffix.lower() != ".gguf"]

    def size_bytes(self) -> int:
        """Return what its files take, each once."""
        return sum(stat.st_size for stat in _stats(self.files()))

    def last_used_s(self) -> float:
        """Return when one of its files was last read, in seconds since 1970, as far as the disk notes that."""
        return max((stat.st_atime for stat in _stats(self.files())), default=0.0)


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return where the cache is, by the variables that huggingface_hub reads; it need not exist."""
    said = environment.get("HF_HUB_CACHE", environment.get("HUGGINGFACE_HUB_CACHE"))
    if said is None:
        caches = environment.get("XDG_CACHE_HOME", "~/.cache")
        said = environment.get("HF_HOME", f"{caches}/huggingface") + "/hub"
    return Path(os.path.expandvars(said)).expanduser().absolute()


def cached_models(folder: Path) -> list[CachedModel]:
    """Return the models in the cache at `folder`, by name; a name that two repositories claim goes to the first.

    They are those that Pomona pulled and, of every other repository, the snapshot of `main`, or the newest one, where
    its config is that of a model that this project might serve and its weights are all there.
    """
    found: dict[str, CachedModel] = {}
    try:
        repositories = sorted(path for path in folder.iterdir() if path.name.startswith(PREFIX) and path.is_dir())
    except OSError:
        return []
    for repository in repositories:
        for model in _models_of(repository):
            found.setdefault(model.name, model)
    return sorted(found.values(), key=lambda model: model.name)


def repository_folder(folder: Path, repository: str) -> Path:
    """Return where a repository lies in the cache at `folder`."""
    return folder / (PREFIX + repository.replace("/", "--"))


def remove(folder: Path, model: CachedModel) -> int:
    """Remove a model from the cache at `folder` and return the bytes that were freed.

    The whole repository goes, other revisions included, unless Pomona pulled more models of it: then only what no other
    of them has.

    Raises:
        OSError: something of it cannot be removed; the rest may be gone.
    """
    home = repository_folder(folder, model.repository)
    before = _disk_bytes(home)
    others = [other for other in _models_of(home) if other.name != model.name]
    if not others:
        shutil.rmtree(home)
        shutil.rmtree(folder / ".locks" / home.name, ignore_errors=True)
        return before
    forget(home, model.name)
    kept = {path for other in others for path in other.files()}
    for path in model.files():
        if path not in kept:
            path.unlink(missing_ok=True)
    _sweep(home)
    return before - _disk_bytes(home)


def is_complete(snapshot: Path) -> bool:
    """Say whether every file of weights is there: a download that was cut short leaves some out."""
    index = _read_object(snapshot / INDEX_FILE)
    if index is None:
        return any(snapshot.glob("*.safetensors")) or (snapshot / CONVERTED_FILE).is_file()
    shards = index.get("weight_map")
    if not isinstance(shards, dict):
        return False
    return all((snapshot / str(name)).is_file() for name in set(cast("dict[str, Any]", shards).values()))


def _models_of(home: Path) -> Iterator[CachedModel]:
    repository = home.name.removeprefix(PREFIX).replace("--", "/")
    pulled = read_pulled(home)
    for one in pulled or _unclaimed(home, repository):
        snapshot = home / "snapshots" / one.revision
        checkpoint = snapshot / one.file if one.file else snapshot
        if is_name(one.name) and (checkpoint.is_file() if one.file else (snapshot / CONFIG_FILE).is_file()):
            yield CachedModel(one.name, repository, one.revision, checkpoint)


def _unclaimed(home: Path, repository: str) -> Iterator[Pulled]:
    """Give the model of a repository that another program brought here."""
    snapshot = _snapshot(home)
    if snapshot is not None and is_complete(snapshot) and _may_be_served(snapshot):
        yield Pulled(repository, snapshot.name)


def _snapshot(home: Path) -> Path | None:
    try:
        main = home / "snapshots" / (home / "refs" / "main").read_text("ascii").strip()
        if main.parent == home / "snapshots" and main.is_dir():
            return main
    except (OSError, ValueError):
        pass  # no branch, or one of bytes that name nothing: the newest is as good
    try:
        return max((home / "snapshots").iterdir(), key=lambda path: path.stat().st_mtime, default=None)
    except OSError:
        return None


def _may_be_served(snapshot: Path) -> bool:
    config = _read_object(snapshot / CONFIG_FILE)
    if config is None:
        return False
    if is_converted_whisper(config) or "n_mels" in config:
        return True
    if not any(snapshot.glob("*.safetensors")):
        return False
    classes = config.get("architectures")
    if not isinstance(classes, list):
        return isinstance(config.get("model_type"), str)
    names = [str(name) for name in cast("list[Any]", classes)]
    return (snapshot / MODULES_FILE).is_file() or any(name.endswith(GENERATORS) for name in names)


def _read_object(path: Path) -> dict[str, Any] | None:
    """Return the object in a file of JSON; None where there is none, or one beyond all reason."""
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES * (8 if path.name == INDEX_FILE else 1):
            return None
        value: object = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _sweep(home: Path) -> None:
    """Remove blobs that no snapshot has any more, and folders without files."""
    snapshots = home / "snapshots"
    used = {path.resolve() for path in snapshots.rglob("*") if path.is_symlink()}
    for blob in (home / "blobs").glob("*"):
        if blob.resolve() not in used and blob.suffix != ".incomplete":
            blob.unlink()
    for path in sorted(snapshots.rglob("*"), reverse=True):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def _disk_bytes(home: Path) -> int:
    paths = (Path(root) / name for root, _, names in os.walk(home) for name in names)
    return sum(path.lstat().st_size for path in paths if not path.is_symlink())


def _stats(paths: Iterable[Path]) -> list[os.stat_result]:
    found: dict[tuple[int, int], os.stat_result] = {}
    for path in paths:
        try:
            stat = path.stat()
        except OSError:
            continue
        found[stat.st_dev, stat.st_ino] = stat
    return list(found.values())
