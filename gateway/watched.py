"""The parts of the gateway that whoever observes it looks at."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.admission import Admission
from gateway.catalogue import Catalogue
from gateway.model_status import WorkerPool
from gateway.requests import Requests


@dataclass(frozen=True, slots=True)
class Watched:
    """What is looked at, and never asked to wait for."""

    catalogue: Catalogue
    workers: WorkerPool
    admission: Admission
    requests: Requests
