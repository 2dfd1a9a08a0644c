"""Reading an adapter for a model, with the words of the worker for what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from models.adapters.adapter import Adapter, open_adapter
from models.adapters.errors import AdapterError, AdapterMissing
from models.adapters.target import AdapterTarget
from worker.errors import AdapterCapacity, AdapterIncompatible, AdapterNotFound


def read_adapter(name: str, folder: Path, targets: Mapping[str, AdapterTarget], max_bytes: int) -> Adapter:
    """Check an adapter by its headers, then read it.

    Args:
        name: what it will be called.
        folder: where it is.
        targets: the model's layers that adapters may change.
        max_bytes: that its file may hold.

    Raises:
        AdapterNotFound: its folder is gone.
        AdapterIncompatible: something in it does not fit, by name.
        AdapterCapacity: it is larger than all that may be mounted.
    """
    try:
        header = open_adapter(folder, targets)
        if header.data_bytes > max_bytes:
            raise AdapterCapacity(name, header.data_bytes, max_bytes, max_bytes)
        return header.read()
    except AdapterMissing as error:
        raise AdapterNotFound(name) from error
    except AdapterError as error:
        raise AdapterIncompatible(name, str(error), **error.metadata) from error
