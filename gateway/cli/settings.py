"""What the command line sets in its environment for the libraries that it loads, and what it reads from it."""

import os
import sys
from pathlib import Path


def quiet_grpc() -> None:
    """Have gRPC write nothing below an error on standard error, unless GRPC_VERBOSITY is set.

    It says that a server went away, for one, before the verb does. It reads the variable when it is imported.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")


def cache_folder() -> Path:
    """Return where files of this user may lie that can be made again; it need not exist."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    if Path(named).is_absolute():
        return Path(named, "pomona")
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "pomona"


def config_folder() -> Path:
    """Return where this user's settings may lie; it need not exist."""
    named = os.environ.get("XDG_CONFIG_HOME", "")
    if Path(named).is_absolute():
        return Path(named, "pomona")
    return Path.home() / ("Library/Application Support" if sys.platform == "darwin" else ".config") / "pomona"
