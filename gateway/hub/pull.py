"""One pull from its order to a checkpoint in the cache: list, choose, check the disk, download, note it.

Runs in a process of its own; see `gateway.hub.__main__`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path

from huggingface_hub import constants

from gateway.hub.cache import repository_folder
from gateway.hub.failures import hub_failures
from gateway.hub.messages import Done, Failed, Kind, Order, Progress
from gateway.hub.meter import Meter
from gateway.hub.pulled import Pulled, remember
from gateway.hub.repository import Listing, list_repository, read_config
from gateway.hub.selection import NothingUsable, RemoteFile, Selection, select
from gateway.hub.transfer import Transfer

AT_ONCE = 3
MAX_TOLD_SKIPS = 20
# Left free on the disk, for everybody else.
SPARE_BYTES = 64 * 1024 * 1024

Tell = Callable[[Progress], None]


def pull(order: Order, tell: Tell) -> Done:
    """Have the model of an order in the cache.

    Args:
        order: what is wanted.
        tell: takes how far it is, on any thread.

    Raises:
        Failed: it cannot be had; what came is kept.
    """
    cache = Path(constants.HF_HUB_CACHE)
    with hub_failures(order):
        tell(Progress("listing"))
        listing = list_repository(order)
        selection = _select(order, listing)
        for file in selection.skipped[:MAX_TOLD_SKIPS]:
            tell(Progress("skipped", file.name, bytes_total=file.size))
        if listing.is_online:
            _download(order, listing, selection, tell)
        return _note(order, listing.commit, cache)


def _select(order: Order, listing: Listing) -> Selection:
    try:
        return select(listing.files, order.file, partial(read_config, order, listing.commit))
    except NothingUsable as error:
        raise Failed(Kind.UNUSABLE, str(error)) from error


def _download(order: Order, listing: Listing, selection: Selection, tell: Tell) -> None:
    cache = Path(constants.HF_HUB_CACHE)
    meter = Meter(tell, sum(file.size for file in selection.files))
    transfer = Transfer(order.repository, listing.commit, cache, meter)
    _check_disk(cache, sum(transfer.missing_bytes(file) for file in selection.files))
    _fetch_all(transfer, selection.files)


def _check_disk(cache: Path, needed_bytes: int) -> None:
    existing = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free_bytes = max(0, shutil.disk_usage(existing).free - SPARE_BYTES)
    if needed_bytes > free_bytes:
        raise Failed(Kind.DISK_FULL, "the disk is too full", needed_bytes=needed_bytes, free_bytes=free_bytes)


def _fetch_all(transfer: Transfer, files: Sequence[RemoteFile]) -> None:
    """Download a few files at once, the small ones first; the first failure ends it, whatever others still wait for."""
    threads = ThreadPoolExecutor(AT_ONCE)
    fetched = [threads.submit(transfer.fetch, file) for file in sorted(files, key=lambda file: file.size)]
    done, _ = wait(fetched, return_when=FIRST_EXCEPTION)
    threads.shutdown(wait=False, cancel_futures=True)
    for one in done:
        one.result()


def _note(order: Order, commit: str, cache: Path) -> Done:
    """Note what was pulled, and where the branch is, now that all of it is there."""
    home = repository_folder(cache, order.repository)
    revision = order.revision or constants.DEFAULT_REVISION
    if revision != commit:
        reference = home / "refs" / revision
        reference.parent.mkdir(parents=True, exist_ok=True)
        reference.write_text(commit, "ascii")
    remember(home, Pulled(order.model, commit, order.file))
    snapshot = home / "snapshots" / commit
    return Done(commit, str(snapshot / order.file if order.file else snapshot))
