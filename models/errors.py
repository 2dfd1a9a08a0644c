"""What can go wrong between a caller and a loaded model.

    ModelError
    └── CacheError
        ├── PlanError        a step plan does not fit what the cache holds
        ├── CommitError      a commit does not fit the open step
        ├── BlocksExhausted  no block is free
        ├── BlockUnheld      a block is shared or given back that nobody holds
        └── BytesRejected    bytes are none that a cache has written

A checkpoint that cannot become a model is an error of `models.checkpoint.errors`. These here are broken agreements
between our own parts: none is caused by a client's input.
"""

from __future__ import annotations


class ModelError(Exception):
    """Raised when a model is used in a way that it does not allow."""


class CacheError(ModelError):
    """Raised when the cache and its caller disagree about a slot.

    Attributes:
        slot: the slot concerned, or -1 where a plan as a whole is at fault.
        problem: one clause in plain words.
    """

    def __init__(self, slot: int, problem: str) -> None:
        """Keep the facts."""
        self.slot = slot
        self.problem = problem
        super().__init__(f"slot {slot}: {problem}" if slot >= 0 else problem)


class PlanError(CacheError):
    """Raised when a step plan does not fit what the cache holds."""


class CommitError(CacheError):
    """Raised when a commit does not fit the open step of its slot."""


class BlocksExhausted(CacheError):
    """Raised when no block is free that is not promised: what runs was not given room before it began."""

    def __init__(self, num_blocks: int) -> None:
        """Keep how many there are."""
        super().__init__(-1, f"none of {num_blocks} blocks is free")


class BlockUnheld(CacheError):
    """Raised when a block is shared or given back that nobody holds."""

    def __init__(self, block: int) -> None:
        """Keep which."""
        super().__init__(-1, f"nobody holds block {block}")


class BytesRejected(CacheError, ValueError):
    """Raised when bytes are none that a cache has written."""

    def __init__(self) -> None:
        """Say so."""
        super().__init__(-1, "the bytes are not those of a part")
