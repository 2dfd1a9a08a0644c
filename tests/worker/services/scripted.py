"""The services over a real engine whose workload answers by a script: no model, no device."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import grpc.aio
from pomona.v1 import common_pb2

from tests.support.worker_client import WorkerClient
from tests.support.worker_process import MODEL, OPTIONS
from worker.abilities import abilities_of
from worker.claim import Claim
from worker.engine import Engine
from worker.events import Event, Usage
from worker.job import Counts, Job, Reporter, RequestView
from worker.prompting import Prompter
from worker.sequence import TextRequest
from worker.served import ServedModel
from worker.services.desk import Desk
from worker.services.edge import Edge
from worker.services.generation import GenerationService
from worker.services.requests import OpenRequests
from worker.steerer import Steerer
from worker.validation import ModelFacts

SECRET = "s"
CONTEXT_TOKENS = 100


@dataclass(frozen=True, slots=True)
class Turn:
    """One request's turn."""

    job: Job[TextRequest]

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.job.request.key,)


@dataclass
class Script:
    """Answers every request with the same events, once `gate` is set, and keeps the requests."""

    events: Sequence[Event]
    max_jobs: int = 4
    state: str = "queued"
    usage: Usage = field(default_factory=Usage)
    gate: threading.Event = field(default_factory=threading.Event)
    requests: list[TextRequest] = field(default_factory=list[TextRequest])
    jobs: dict[str, Job[TextRequest]] = field(default_factory=dict[str, Job[TextRequest]])

    def load(self, report: Callable[[object], None]) -> None:
        report(None)

    def admit(self, job: Job[TextRequest]) -> None:
        self.requests.append(job.request)
        self.jobs[job.request.key] = job

    def claim(self) -> Claim:
        return Claim.BULK

    def plan(self, burst_s: float | None = None) -> Turn | None:
        return next((Turn(job) for job in self.jobs.values()), None)

    def run(self, plan: Turn, reporter: Reporter[TextRequest]) -> None:
        assert self.gate.wait(10)
        del self.jobs[plan.job.request.key]
        for event in self.events:
            reporter.post(plan.job, event)

    def drop(self, key: str) -> Usage:
        self.jobs.pop(key, None)
        return self.usage

    def view(self, job: Job[TextRequest]) -> RequestView:
        return RequestView(job.request.key, job.request.request_id, self.state, job.submitted, self.usage)

    def counts(self) -> Counts:
        return Counts()

    def recover(self) -> None:
        pass

    def close(self) -> None:
        pass


class NoTokenizer:
    """Stands where only prompts in tokens come."""

    bos_token = None

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return [1] * len(text)

    def token_bytes(self, token_id: int) -> bytes:
        return b""

    def special_bytes(self, token_id: int) -> bytes:
        return b""


def _no_compiler() -> NoReturn:
    raise NotImplementedError


@dataclass(frozen=True)
class Gateway:
    """What a client of the services needs of a worker."""

    def metadata(self, stamps: Mapping[str, str] | None = None) -> tuple[tuple[str, str], ...]:
        stamped = {f"x-pomona-{key.replace('_', '-')}": value for key, value in (stamps or {}).items()}
        return tuple({"x-pomona-secret": SECRET, **stamped}.items())


@dataclass(frozen=True)
class Services:
    """The services with a client.

    Attributes:
        desk: where they hand requests in.
    """

    client: WorkerClient
    desk: Desk[TextRequest, Any]


@contextlib.asynccontextmanager
async def serving(
    folder: Path, script: Script, max_response_bytes: int = 1 << 20, *, marks: bool = False
) -> AsyncGenerator[Services]:
    """Serve a script on a socket in `folder`, of a model that reasons between marks or does not."""
    engine: Any = Engine(script, asyncio.get_running_loop())
    engine.start()
    await engine.load()
    desk = Desk(engine, OpenRequests(), 1 << 18)
    abilities = abilities_of("<think></think>" if marks else "")
    facts = ModelFacts(vocab_size=1000, max_context_tokens=CONTEXT_TOKENS, abilities=abilities)
    prompter = Prompter(NoTokenizer(), None, CONTEXT_TOKENS)
    steerer = Steerer(abilities, NoTokenizer(), _no_compiler, CONTEXT_TOKENS)
    served = ServedModel(prompter, steerer, facts, frozenset({0}), common_pb2.ResolvedModel(model=MODEL))
    service = GenerationService(desk, lambda: served, max_response_bytes)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((service.handlers(Edge(SECRET, MODEL, max_response_bytes)),))
    server.add_insecure_port(f"unix:{folder}/s")
    await server.start()
    async with grpc.aio.insecure_channel(f"unix:{folder}/s", options=OPTIONS) as channel:
        worker: Any = Gateway()
        yield Services(WorkerClient(worker, channel), desk)
    script.gate.set()
    await server.stop(0)
    await engine.stop(0)
