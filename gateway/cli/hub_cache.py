"""The hub's cache of this machine, as verbs list it."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gateway.cli import output
from gateway.hub.cache import CachedModel, cache_folder, cached_models
from gateway.settings import process_environment

HEADERS = ("MODEL", "SIZE", "REVISION", "LAST USED")
REVISION_CHARS = 12


def hub_cache() -> Path:
    """Return where the cache of this machine is."""
    return cache_folder(process_environment())


def list_cache(*, as_json: bool) -> None:
    """Print the models in the cache."""
    found = cached_models(hub_cache())
    if as_json:
        output.emit({"cached": [_as_dict(model) for model in found]}, indent=2)
    elif found:
        output.table(HEADERS, [_row(model) for model in found])
    else:
        output.notice("no models in the hub's cache; to download one: pomona pull ORG/NAME")


def _row(model: CachedModel) -> tuple[str, ...]:
    return (
        model.name,
        output.bytes_text(model.size_bytes()),
        model.revision[:REVISION_CHARS],
        _moment(model.last_used_s()).strftime("%Y-%m-%d %H:%M:%SZ"),
    )


def _as_dict(model: CachedModel) -> dict[str, Any]:
    return {
        "model": model.name,
        "repository": model.repository,
        "revision": model.revision,
        "sizeBytes": str(model.size_bytes()),
        "lastUsedTime": _moment(model.last_used_s()).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "checkpoint": str(model.checkpoint),
    }


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
