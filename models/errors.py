"""What can go wrong between a caller and a loaded model.

    ModelError
    ├── CacheError
    │   ├── PlanError        a step plan does not fit what the cache holds
    │   ├── CommitError      a commit does not fit the open step
    │   ├── BlocksExhausted  no block is free
    │   ├── BlockUnheld      a block is shared or given back that nobody holds
    │   └── BytesRejected    bytes are none that a cache has written
    └── ExpertsError
        ├── SlotsTooFew      the slabs of a budget cannot serve a step
        ├── ExpertMisplaced  an expert is not where its caller takes it to be
        └── ExpertUnreadable an expert's weights cannot be read

A checkpoint that cannot become a model is an error of `models.checkpoint.errors`. These here are broken agreements
between our own parts, but for two: a budget that is too small, and a file that can no longer be read. None is caused by
a client's input.
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


class ExpertsError(ModelError):
    """Raised when routed experts cannot be held or used."""


class SlotsTooFew(ExpertsError):
    """Raised when a budget has too few slots to serve a step.

    Attributes:
        num_slots: how many there would be.
        least: how many are needed.
        least_bytes: the smallest budget that would do; 0 where it is not known.
    """

    def __init__(self, num_slots: int, least: int, least_bytes: int = 0) -> None:
        """Keep the facts."""
        self.num_slots = num_slots
        self.least = least
        self.least_bytes = least_bytes
        in_bytes = f", which take {least_bytes} bytes" if least_bytes else ""
        super().__init__(f"the budget has {num_slots} slots for experts, and {least} are needed{in_bytes}")


class ExpertMisplaced(ExpertsError):
    """Raised when an expert is not where its caller takes it to be.

    Attributes:
        layer: number of the layer within its slab.
        expert: number of the expert.
    """

    def __init__(self, layer: int, expert: int, problem: str) -> None:
        """Keep which."""
        self.layer = layer
        self.expert = expert
        super().__init__(f"expert {expert} of layer {layer} {problem}")


class ExpertUnreadable(ExpertsError):
    """Raised when an expert's weights cannot be read: the step ends, and the slab can be used further.

    Attributes:
        module: canonical name of the layer's experts.
        expert: number of the expert.
        file: base name of the file.
        code: the system's error number; 0 where the file breaks off.
    """

    def __init__(self, module: str, expert: int, *, file: str, problem: str, code: int = 0) -> None:
        """Keep the facts."""
        self.module = module
        self.expert = expert
        self.file = file
        self.code = code
        super().__init__(f"{file}: expert {expert} of {module}: {problem}")
