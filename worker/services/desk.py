"""Where the services of a worker hand requests in."""

from dataclasses import dataclass
from typing import Generic

from worker.engine import Engine
from worker.job import P, R
from worker.services.requests import OpenRequests


@dataclass(frozen=True, slots=True)
class Desk(Generic[R, P]):
    """The engine, and what it does not know of its requests.

    Attributes:
        engine: runs the requests.
        requests: those that are open.
        outbox_bytes: what may wait for a slow reader.
    """

    engine: Engine[R, P]
    requests: OpenRequests
    outbox_bytes: int
