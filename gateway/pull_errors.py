"""Why a checkpoint cannot be had from the hub; `errors.py` has the whole tree."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.errors import PullError


@dataclass(eq=False)
class RepositoryNotFound(PullError):
    """Raised when the hub has no such repository, revision or file for this server; `problem` says which."""

    repository: str
    problem: str

    text = "{0.repository} cannot be pulled: {0.problem}."


@dataclass(eq=False)
class RepositoryForbidden(PullError):
    """Raised when the hub does not let this server have a repository; `problem` says what is needed."""

    repository: str
    problem: str

    text = "{0.repository} cannot be pulled: {0.problem}."


@dataclass(eq=False)
class HubUnreachable(PullError):
    """Raised when the hub does not answer, or breaks off again and again; `problem` says which."""

    repository: str
    problem: str

    text = "{0.repository} cannot be pulled now: {0.problem}."


@dataclass(eq=False)
class DiskFull(PullError):
    """Raised when what is to be downloaded does not fit on the disk of the hub's cache; 0 bytes: not known."""

    repository: str
    needed_bytes: int = 0
    free_bytes: int = 0

    @property
    def words(self) -> str:
        """Both sizes for people; without any, it became full on the way."""
        if not self.needed_bytes:
            return "that became full; what came is kept"
        return f"it needs {self.needed_bytes / 1e9:.2f} GB, and {self.free_bytes / 1e9:.2f} GB are free"

    text = "{0.repository} does not fit on the disk of the cache: {0.words}."
