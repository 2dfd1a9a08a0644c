"""A repository of the hub, asked about over the network: its commit, its files and their sizes.

Imported by the process of a pull alone, as everything that needs huggingface_hub.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from huggingface_hub import HfApi, constants, get_session
from huggingface_hub.errors import OfflineModeIsEnabled
from huggingface_hub.utils import hf_raise_for_status

from gateway.hub.access import LIBRARY, file_address, request_headers, silence_limit_s
from gateway.hub.cache import is_complete, repository_folder
from gateway.hub.messages import Failed, Kind, Order
from gateway.hub.selection import CONFIG_FILE, RemoteFile

MAX_CONFIG_BYTES = 1024 * 1024
_COMMIT = re.compile(r"[0-9a-f]{7,64}", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Listing:
    """What a repository holds at one commit."""

    commit: str
    files: tuple[RemoteFile, ...]
    is_online: bool = True


def list_repository(order: Order) -> Listing:
    """Return what the repository of an order holds.

    In offline mode that is what the cache has of it, if that is a whole model.

    Raises:
        Failed: it is not there, or neither is the network.
    """
    try:
        info = HfApi(library_name=LIBRARY).model_info(
            order.repository,
            revision=order.revision or None,
            files_metadata=True,
            timeout=silence_limit_s(),
        )
    except OfflineModeIsEnabled:
        return _cached(order)
    commit = info.sha or ""
    if not _COMMIT.fullmatch(commit):
        raise Failed(Kind.UNREACHABLE, "the hub does not say which commit this is")
    files = tuple(_file(sibling) for sibling in info.siblings or ())
    return Listing(commit, files)


def read_config(order: Order, commit: str) -> Mapping[str, Any]:
    """Fetch config.json without keeping it; what is no object of a config's size is an empty one."""
    url = file_address(order.repository, CONFIG_FILE, commit)
    response = get_session().get(url, headers=request_headers(), timeout=silence_limit_s())
    hf_raise_for_status(response)
    try:
        said: object = json.loads(response.content[:MAX_CONFIG_BYTES])
    except ValueError:
        return {}
    return cast("dict[str, Any]", said) if isinstance(said, dict) else {}


def _file(sibling: Any) -> RemoteFile:
    """Return a file with the digest that its blob is called by in the cache."""
    digest = str(sibling.lfs.sha256 if sibling.lfs else sibling.blob_id or "")
    return RemoteFile(str(sibling.rfilename), int(sibling.size or 0), digest if _DIGEST.fullmatch(digest) else "")


def _cached(order: Order) -> Listing:
    home = repository_folder(Path(constants.HF_HUB_CACHE), order.repository)
    revision = order.revision or constants.DEFAULT_REVISION
    try:
        commit = (home / "refs" / revision).read_text("ascii").strip()
    except (OSError, ValueError):
        commit = revision
    snapshot = home / "snapshots" / commit
    is_whole = (snapshot / order.file).is_file() if order.file else is_complete(snapshot)
    if not _COMMIT.fullmatch(commit) or not is_whole:
        raise Failed(Kind.NOT_FOUND, "it is not in the cache, and HF_HUB_OFFLINE keeps this server from the network")
    paths = [path for path in snapshot.rglob("*") if path.is_file()]
    files = (RemoteFile(path.relative_to(snapshot).as_posix(), path.stat().st_size) for path in paths)
    return Listing(commit, tuple(files), is_online=False)
