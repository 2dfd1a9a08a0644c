"""What can happen to a model, and what then is to be done about it: the words between a life and who keeps it."""

from dataclasses import dataclass, field

from pomona.v1 import model_pb2

from gateway.errors import GatewayError
from gateway.model_status import Exit, Keeping, LoadOptions, LoadProgress


@dataclass(frozen=True, slots=True)
class Wanted:
    """Someone needs the model.

    Attributes:
        options: how it is to be loaded; None takes it as it is.
        is_order: an operator asks, or the checkpoint changed: a failed model is tried again.
        keeping: how long it is to stay; what is None stays as it was chosen before.
        may_evict: whether others may go to make room for it.
    """

    options: LoadOptions | None = None
    is_order: bool = False
    keeping: Keeping = field(default_factory=Keeping)
    may_evict: bool = True


@dataclass(frozen=True, slots=True)
class Unwanted:
    """The model is to go.

    Attributes:
        grace_s: how long its requests may go on.
        is_forgotten: whether that is also the end of what was chosen for it.
    """

    grace_s: float
    is_forgotten: bool = True


@dataclass(frozen=True, slots=True)
class Retired:
    """The model is to go until someone needs it: it was idle for long, or its memory is needed. It is not forgotten.

    Attributes:
        grace_s: how long its requests may go on.
    """

    grace_s: float


@dataclass(frozen=True, slots=True)
class Granted:
    """There is memory for the load that waited for it."""


@dataclass(frozen=True, slots=True)
class Refused:
    """There can never be memory for the load."""

    failure: GatewayError


@dataclass(frozen=True, slots=True)
class Forsaken:
    """Nobody waits any more for the load that waits for memory."""


@dataclass(frozen=True, slots=True)
class Progressed:
    """Its load moved."""

    progress: LoadProgress


@dataclass(frozen=True, slots=True)
class Ready:
    """Its worker can be called; `facts` are what it said of the model."""

    facts: model_pb2.Model


@dataclass(frozen=True, slots=True)
class Suspected:
    """Its worker is to get no new work."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """Its suspected worker reports again."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """Its worker takes no more requests and is about to end, though nobody here asked it to."""


@dataclass(frozen=True, slots=True)
class Exited:
    """Its worker's process is gone.

    Attributes:
        exit: how it ended.
        failure: what the worker said of a load that failed.
        is_counted: False where its crash belongs to an incident that was counted already.
    """

    exit: Exit
    failure: GatewayError | None = None
    is_counted: bool = True


@dataclass(frozen=True, slots=True)
class Idle:
    """The last of its requests has ended, or their time is over."""


@dataclass(frozen=True, slots=True)
class PauseOver:
    """The pause after a crash is over; `number` tells it from an earlier one."""

    number: int


Event = (
    Wanted
    | Unwanted
    | Retired
    | Granted
    | Refused
    | Forsaken
    | Progressed
    | Ready
    | Suspected
    | Recovered
    | Leaving
    | Exited
    | Idle
    | PauseOver
)


@dataclass(frozen=True, slots=True)
class Claim:
    """Memory is to be found for a worker; `Granted`, `Refused` or `Forsaken` is to be given then."""


@dataclass(frozen=True, slots=True)
class StartWorker:
    """A worker is to be started."""


@dataclass(frozen=True, slots=True)
class AwaitIdle:
    """`Idle` is to be given once no request runs, or after `grace_s`."""

    grace_s: float


@dataclass(frozen=True, slots=True)
class StopWorker:
    """The worker is to be stopped at once."""


@dataclass(frozen=True, slots=True)
class Pause:
    """`PauseOver(number)` is to be given after `delay_s`."""

    number: int
    delay_s: float


Effect = Claim | StartWorker | AwaitIdle | StopWorker | Pause
