"""What can go wrong between a caller and a loaded model.

    ModelError
    └── CacheError
        ├── PlanError    a step plan does not fit what the cache holds
        └── CommitError  a commit does not fit the open step

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
