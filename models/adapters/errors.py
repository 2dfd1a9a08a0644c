"""What can be wrong with an adapter.

    AdapterError             reason of the wire
    ├── AdapterMissing       ADAPTER_NOT_FOUND      its folder is not there
    └── AdapterRejected      ADAPTER_INCOMPATIBLE   it is spoilt, of a kind that is not run, or made for another model

A message names a file by its base name, and the tensor or key within it: it may reach a client.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import ClassVar

from models.checkpoint.errors import CheckpointError, quotable

_MAX_PROBLEM_CHARS = 400


class AdapterError(Exception):
    """Raised when an adapter cannot be used.

    Attributes:
        file: base name of the file or folder that is at fault.
        key: what in it is at fault: a tensor, a module or a key of the settings; empty for the file as a whole.
        problem: one clause in plain words.
        reason: the `ErrorReason` that a client sees.
    """

    reason: ClassVar[str] = "ADAPTER_INCOMPATIBLE"

    def __init__(self, problem: str, *, file: str, key: str = "") -> None:
        """Keep the facts, cut to a length that is safe to pass on."""
        self.file = quotable(file)
        self.key = quotable(key)
        self.problem = quotable(problem, _MAX_PROBLEM_CHARS)
        place = f"{self.file}: {self.key}" if self.key else self.file
        super().__init__(f"{place}: {self.problem}")

    @property
    def metadata(self) -> dict[str, str]:
        """The facts as the string map of an `ErrorInfo`."""
        return {"file": self.file, "key": self.key} if self.key else {"file": self.file}


class AdapterMissing(AdapterError):
    """Raised when there is no folder of an adapter."""

    reason: ClassVar[str] = "ADAPTER_NOT_FOUND"


class AdapterRejected(AdapterError):
    """Raised when an adapter is spoilt, of a kind that is not run, or does not fit the model."""


@contextmanager
def as_adapters() -> Generator[None]:
    """Raise what is wrong with a file, as what reads checkpoints says it, as wrong with an adapter.

    Raises:
        AdapterRejected: for a `CheckpointError`.
    """
    try:
        yield
    except CheckpointError as error:
        raise AdapterRejected(error.problem, file=error.file, key=error.key) from error
