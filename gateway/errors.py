"""Everything that the gateway refuses or fails with; `status.py` turns it into a gRPC status.

    GatewayError
    ├── RequestError          MalformedRequest  InvalidField  UnsupportedOption  DuplicateRequestId  StreamIdle
    │                         SlowReader  RequestQuarantined
    ├── CallerError           CredentialsMissing  CredentialsInvalid  CredentialsExpired  ScopeMissing
    │                         ModelForbidden  RateLimited
    ├── ModelError            ModelNotFound  ModelLoading  ModelBackingOff  ModelFailed  ModelUnloading  ModelInUse
    │   │                     TaskNotSupported  AdapterNotFound
    │   └── LoadError         ModelLoadFailed  ModelExceedsMemory  CheckpointRejected  CheckpointCorrupt
    ├── WorkerError           WorkerDied  WorkerStalled  WorkerRestarting
    ├── CapacityError         QueueFull  MemoryBudget  MemoryPressure
    ├── PullError             RepositoryNotFound  RepositoryForbidden  HubUnreachable  DiskFull
    ├── ServerDraining
    ├── CancelledByOperator
    ├── DeadlineExceeded
    └── InternalError

Classes in the left column are for catching only. What is below RequestError is in `request_errors.py`, what is below
CallerError in `caller_errors.py`, what is below PullError in `pull_errors.py`. `text` is what clients read: no path, no
text of a foreign exception.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from gateway.model_status import LoadProgress


class GatewayError(Exception):
    """Raised when the gateway refuses or cannot finish a request; the root of the tree."""

    text: ClassVar[str] = "The request failed."

    def __str__(self) -> str:
        """Return the text that clients see."""
        return self.text.format(self)


class RequestError(GatewayError):
    """Raised when the request itself is at fault."""


class CallerError(GatewayError):
    """Raised when the caller may not do this, or not so much of it."""


class ModelError(GatewayError):
    """Raised when the model cannot serve the request now."""


class LoadError(ModelError):
    """Raised when the model's checkpoint could not be loaded."""


class WorkerError(GatewayError):
    """Raised when the worker went away under the request."""


class CapacityError(GatewayError):
    """Raised when there is no room for the request now."""


class PullError(GatewayError):
    """Raised when a checkpoint cannot be had from the hub."""


@dataclass(eq=False)
class ModelNotFound(ModelError):
    """Raised when no model has this name or alias; `known` are the names there are."""

    model: str
    known: tuple[str, ...] = ()

    text = "There is no model named {0.model}."


@dataclass(eq=False)
class ModelLoading(ModelError):
    """Raised when the model is still loading and the caller's deadline cannot cover it."""

    model: str
    progress: LoadProgress = field(default_factory=LoadProgress)

    text = "The model {0.model} is loading, and the deadline is too short to wait for it."


@dataclass(eq=False)
class ModelLoadFailed(LoadError):
    """Raised when a load ended without a model for a reason other than the checkpoint's content.

    `problem` is a sentence that clients may see; `facts` go into the error's metadata.
    """

    model: str
    problem: str
    facts: Mapping[str, str] = field(default_factory=dict[str, str])

    text = "The model {0.model} could not be loaded: {0.problem}"


@dataclass(eq=False)
class ModelExceedsMemory(LoadError):
    """Raised when a model can never fit what models may take of this machine: `facts` have both, in bytes."""

    model: str
    problem: str
    facts: Mapping[str, str] = field(default_factory=dict[str, str])

    text = "The model {0.model} does not fit this machine: {0.problem}"


@dataclass(eq=False)
class CheckpointRejected(LoadError):
    """Raised when a checkpoint is not one that this build loads: `problem` names its file and key."""

    model: str
    problem: str
    facts: Mapping[str, str] = field(default_factory=dict[str, str])

    text = "The checkpoint of {0.model} was rejected: {0.problem}"


@dataclass(eq=False)
class CheckpointCorrupt(LoadError):
    """Raised when a checkpoint's files are damaged: `problem` names the file."""

    model: str
    problem: str
    facts: Mapping[str, str] = field(default_factory=dict[str, str])

    text = "The checkpoint of {0.model} is damaged: {0.problem}"


@dataclass(eq=False)
class ModelBackingOff(ModelError):
    """Raised when the model's worker crashed and the pause before start number `attempt` is running."""

    model: str
    attempt: int
    retry_after_s: float

    text = "The worker of {0.model} crashed; start {0.attempt} comes after a pause."


@dataclass(eq=False)
class ModelFailed(ModelError):
    """Raised when the crash budget is spent: LoadModel, or a changed checkpoint, tries again.

    `last_exit` says how the last worker ended, in words that clients may see.
    """

    model: str
    last_exit: str

    text = "The worker of {0.model} crashed too often and is not started again: {0.last_exit}"


@dataclass(eq=False)
class ModelUnloading(ModelError):
    """Raised when the model is on its way out, or was unloaded under the request."""

    model: str

    text = "The model {0.model} is being unloaded."


@dataclass(eq=False)
class ModelInUse(ModelError):
    """Raised when a model cannot be deleted, because it is loaded or being pulled: `use` says which."""

    model: str
    use: str

    text = "The model {0.model} is {0.use}."


@dataclass(eq=False)
class TaskNotSupported(ModelError):
    """Raised when the model is of another kind than the request; `tasks` are what it does, in words."""

    model: str
    tasks: str

    text = "The model {0.model} cannot do this; what it does: {0.tasks}."


@dataclass(eq=False)
class AdapterNotFound(ModelError):
    """Raised when a model has no adapter of this name; `known` are the names there are."""

    adapter: str
    known: tuple[str, ...] = ()

    text = "There is no adapter named {0.adapter}."


@dataclass(eq=False)
class WorkerDied(WorkerError):
    """Raised when the worker ended after the request had begun.

    `signal` is the signal's name, empty where there was none or it is not known yet; `exit_code` likewise is None.
    """

    model: str
    events_sent: int
    signal: str = ""
    exit_code: int | None = None

    text = "The worker of {0.model} died while it answered."


@dataclass(eq=False)
class WorkerStalled(WorkerError):
    """Raised when the worker stopped moving after the request had begun and was given up."""

    model: str
    events_sent: int

    text = "The worker of {0.model} stopped moving while it answered."


@dataclass(eq=False)
class WorkerRestarting(WorkerError):
    """Raised when the worker ended before the request began and no other could take it."""

    model: str
    retry_after_s: float = 1.0

    text = "The worker of {0.model} is starting again."


@dataclass(eq=False)
class QueueFull(CapacityError):
    """Raised when `depth` requests already run or wait, which is the limit of `scope` (a model, or the server)."""

    scope: str
    depth: int

    text = "{0.depth} requests already run or wait, which is the limit of {0.scope}."


@dataclass(eq=False)
class MemoryBudget(CapacityError):
    """Raised when a model waited for memory until the caller's time was over; `waiting_for` says for what, in words."""

    model: str
    waiting_for: str
    needed_bytes: int
    budget_bytes: int

    text = "There is no memory for the model {0.model} now: it waits for {0.waiting_for}."


@dataclass(eq=False)
class MemoryPressure(CapacityError):
    """Raised when the machine's memory is as good as full: `used_percent` is how full."""

    used_percent: int

    text = "The memory of this machine is {0.used_percent} % full."


class ServerDraining(GatewayError):
    """Raised when the server takes no new requests because it is about to stop."""

    text = "The server is about to stop."


@dataclass(eq=False)
class CancelledByOperator(GatewayError):
    """Raised when CancelRequest ended the request."""

    request_id: str

    text = "An operator cancelled the request {0.request_id}."


class DeadlineExceeded(GatewayError):
    """Raised when the deadline passed before the request reached a worker."""

    text = "The deadline passed."


@dataclass(eq=False)
class InternalError(GatewayError):
    """Raised when something failed that no class here describes; `incident` finds it in the log."""

    incident: str

    text = "Something failed in the server; its log has it as {0.incident}."


def exceeds_memory(model: str, needed_bytes: int, budget_bytes: int) -> ModelExceedsMemory:
    """Return the error for a model that takes more than all models together may."""
    problem = f"it needs {needed_bytes / 1e9:.2f} GB, and models may take {budget_bytes / 1e9:.2f} GB together."
    return ModelExceedsMemory(model, problem, {"needed_bytes": str(needed_bytes), "budget_bytes": str(budget_bytes)})


def load_error(model: str, reason: str, problem: str, facts: Mapping[str, str]) -> LoadError:
    """Return the error for a failed load as its worker told it: a reason of the error table, a sentence, facts."""
    kinds: dict[str, type[ModelLoadFailed | ModelExceedsMemory | CheckpointRejected | CheckpointCorrupt]] = {
        "MODEL_EXCEEDS_MEMORY": ModelExceedsMemory,
        "CHECKPOINT_REJECTED": CheckpointRejected,
        "CHECKPOINT_CORRUPT": CheckpointCorrupt,
    }
    return kinds.get(reason, ModelLoadFailed)(model, problem, dict(facts))
