"""Why a model and an adapter are not made one.

FuseError                 reason of the one-shot
├── FuseOutputExists      OUTPUT_EXISTS   there is something where the folder is to be
├── FuseDiskFull          DISK_FULL       the disk has no room for it
├── FuseBusy              FUSE_BUSY       another process writes it
├── FuseUnwritable        FUSE_FAILED     it cannot be written
├── FuseDiffers           FUSE_DIFFERS    what was made does not answer as the model with the adapter mounted
└── FuseInterrupted       FUSE_FAILED     somebody ended it
"""

from __future__ import annotations

from typing import ClassVar


class FuseError(Exception):
    """Raised when no folder was made; nothing is left of it.

    Attributes:
        reason: in a word, for programs.
        metadata: facts for programs.
    """

    reason: ClassVar[str] = "FUSE_FAILED"

    def __init__(self, problem: str, **metadata: str) -> None:
        super().__init__(problem)
        self.metadata = metadata


class FuseOutputExists(FuseError):
    """Raised when there is something where the folder is to be."""

    reason: ClassVar[str] = "OUTPUT_EXISTS"

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is there already", file=name)


class FuseDiskFull(FuseError):
    """Raised when the disk has no room for the folder; `free_bytes` is None where it became full on the way."""

    reason: ClassVar[str] = "DISK_FULL"

    def __init__(self, needed_bytes: int, free_bytes: int | None) -> None:
        free = "it became full" if free_bytes is None else f"{free_bytes} are free"
        facts = {} if free_bytes is None else {"freeBytes": str(free_bytes)}
        words = f"the folder needs {needed_bytes} bytes of the disk, and {free}"
        super().__init__(words, neededBytes=str(needed_bytes), **facts)


class FuseBusy(FuseError):
    """Raised when another process writes the same folder."""

    reason: ClassVar[str] = "FUSE_BUSY"

    def __init__(self, name: str) -> None:
        super().__init__(f"another process writes {name}", file=name)


class FuseUnwritable(FuseError):
    """Raised when the folder cannot be written."""


class FuseDiffers(FuseError):
    """Raised when what was made does not answer as the model does with the adapter mounted."""

    reason: ClassVar[str] = "FUSE_DIFFERS"


class FuseInterrupted(FuseError):
    """Raised when somebody ended it."""

    def __init__(self) -> None:
        super().__init__("it was ended before it was done")
