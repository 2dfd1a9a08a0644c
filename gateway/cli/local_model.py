"""Models of this machine, by name or folder, for verbs that need no server."""

from pathlib import Path

from gateway.cli import output
from gateway.cli.fit import is_path
from gateway.cli.hub_cache import hub_cache
from gateway.cli.remove import NotCachedError
from gateway.hub.cache import cached_models


def local_folder(text: str, example: str) -> Path:
    """Return the folder of a model of this machine.

    Args:
        text: a name in the hub's cache, or a folder.
        example: a command for the folder of this name in this folder, should there be one.

    Raises:
        NotCachedError: none is in the hub's cache under this name.
    """
    if is_path(text):
        return Path(text).expanduser().absolute()
    cached = {one.name: one.checkpoint for one in cached_models(hub_cache())}
    if text not in cached:
        if Path(text).exists():
            output.notice(f"{text} is here too: {example}")
        raise NotCachedError(text, list(cached))
    return cached[text]
