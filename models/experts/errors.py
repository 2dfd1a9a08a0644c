"""What can keep experts from being packed, mapped or traced.

    PackError
    ├── PackBusy
    ├── PackDiskFull
    ├── PackUnwritable
    └── PackInterrupted
    MappingUnavailable
    SlabsUnavailable
    TraceUnwritable

What is wrong with a checkpoint, or with a pack that lies beside it, is an error of `models.checkpoint.errors`.
No text names a folder: it may reach a client.
"""

from __future__ import annotations

from models.errors import ModelError


class PackError(ModelError):
    """Raised when a pack cannot be written; what was there before is still there."""


class PackBusy(PackError):
    """Raised when another process packs the same checkpoint."""

    def __init__(self) -> None:
        """Say so."""
        super().__init__("another process packs this checkpoint now")


class PackDiskFull(PackError):
    """Raised when the disk has no room for a pack.

    Attributes:
        needed_bytes: of the pack.
        free_bytes: of the disk, before anything was written; None: it became full on the way.
    """

    def __init__(self, needed_bytes: int, free_bytes: int | None) -> None:
        """Keep both."""
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes
        free = "and the disk became full" if free_bytes is None else f"and {free_bytes / 1e9:.2f} GB are free"
        super().__init__(f"the pack needs {needed_bytes / 1e9:.2f} GB, {free}")


class PackUnwritable(PackError):
    """Raised when the checkpoint's folder cannot be written, or its disk fails; says which in words of the system."""


class PackInterrupted(PackError):
    """Raised when the process was asked to end while it packed."""

    def __init__(self) -> None:
        """Say so."""
        super().__init__("the packing was asked to end")


class MappingUnavailable(ModelError):
    """Raised when experts are to be mapped and this install cannot map files into arrays."""

    def __init__(self) -> None:
        """Say so."""
        super().__init__("this install cannot map files into arrays")


class SlabsUnavailable(ModelError):
    """Raised when experts are to lie in slabs, and what threads read is not seen by this install or this device."""

    def __init__(self) -> None:
        """Say so."""
        super().__init__("this install or this device cannot compute with experts that are read as they are needed")


class TraceUnwritable(ModelError):
    """Raised when routing is to be written down and its file cannot be made; says why in words of the system."""

    def __init__(self, error: OSError) -> None:
        """Say so; which file that is, the settings say."""
        super().__init__(f"the file of expert_trace cannot be written: {error.strerror}")
