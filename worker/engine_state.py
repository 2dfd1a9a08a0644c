"""What an engine takes, from its load to its end."""

from enum import Enum


class EngineState(Enum):
    """What the engine takes; only `Engine._move` changes it."""

    LOADING = "loading"
    READY = "ready"
    STOPPING = "stopping"
    BROKEN = "broken"
    ENDED = "ended"


FOLLOWING = {
    EngineState.LOADING: frozenset({EngineState.READY, EngineState.STOPPING, EngineState.BROKEN, EngineState.ENDED}),
    EngineState.READY: frozenset({EngineState.STOPPING, EngineState.BROKEN, EngineState.ENDED}),
    EngineState.STOPPING: frozenset({EngineState.BROKEN, EngineState.ENDED}),
    EngineState.BROKEN: frozenset[EngineState](),
    EngineState.ENDED: frozenset[EngineState](),
}
