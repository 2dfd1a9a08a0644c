"""A worker without a process: a real gRPC server on a Unix socket that answers by functions of the test.

Its methods are those of a made-up service with all four kinds of RPC, so that the relay can be tested for each.
"""

import asyncio
import contextlib
import inspect
import io
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from pomona.v1 import generation_pb2, model_pb2

from gateway.admission import Admission, AdmissionLimits
from gateway.catalogue import Catalogue, CatalogueModel
from gateway.errors import GatewayError, ModelUnloading
from gateway.exchange import RelayLimits, RelayParts
from gateway.logs import LogRing, make_log
from gateway.model_status import (
    Exit,
    ExitCause,
    Instance,
    Keeping,
    Lease,
    LoadOptions,
    MemoryStatus,
    ModelState,
    ModelStatus,
)
from gateway.relay import Cardinality, Relay
from gateway.requests import Requests

MODEL = "model-a"
ALIAS = "alias-a"
UNARY_UNARY = "/test.Kinds/UnaryUnary"
UNARY_STREAM = "/test.Kinds/UnaryStream"
STREAM_UNARY = "/test.Kinds/StreamUnary"
STREAM_STREAM = "/test.Kinds/StreamStream"
METHODS = {
    UNARY_UNARY: Cardinality(False, False),
    UNARY_STREAM: Cardinality(False, True),
    STREAM_UNARY: Cardinality(True, False),
    STREAM_STREAM: Cardinality(True, True),
}
BEGUN = (("x-pomona-begun", "1"),)
EOF: Any = vars(grpc.aio)["EOF"]
OPTIONS = (("grpc.default_authority", "localhost"), ("grpc.enable_retries", 0), ("grpc.max_receive_message_length", -1))

Answer = Callable[[Any, Any], Awaitable[bytes] | AsyncIterator[bytes]]


def request(model: str = MODEL, request_id: str = "", prompt: str = "", priority: int = 0) -> bytes:
    """Return the bytes of a request for `model`."""
    spec = generation_pb2.GenerationSpec(prompt=prompt)
    return generation_pb2.GenerateRequest(
        model=model, request_id=request_id, priority=priority, spec=spec
    ).SerializeToString()


class ScriptedWorker:
    """A server on a socket of its own; `answers` maps method names to servicer functions over bytes."""

    def __init__(self, folder: Path, answers: Mapping[str, Answer]) -> None:
        self.instance_id = secrets.token_hex(6)
        self.address = f"unix:{folder / self.instance_id}.sock"
        self.answers = answers
        self._server: grpc.aio.Server | None = None
        self._instance: Instance | None = None

    @property
    def instance(self) -> Instance:
        """What the gateway knows of it."""
        assert self._instance is not None
        return self._instance

    async def start(self) -> Instance:
        """Serve, and connect to it."""
        self._server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        self._server.add_generic_rpc_handlers((_Answers(self.answers),))
        self._server.add_insecure_port(self.address)
        await self._server.start()
        channel = grpc.aio.insecure_channel(self.address, options=OPTIONS)
        exit_: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self._instance = Instance(self.instance_id, 4711, channel, "secret", exit_)
        return self._instance

    def give_up(self, exit_: Exit) -> None:
        """Tell the gateway that it is not to be called any more, as its supervisor would."""
        if not self.instance.exit.done():
            self.instance.exit.set_result(exit_)

    async def die(self, exit_: Exit | None = None) -> None:
        """Break every connection, then let the supervisor find out."""
        assert self._server is not None
        await self._server.stop(None)
        self.give_up(exit_ or Exit(ExitCause.DIED, signal=9))

    async def stop(self) -> None:
        """End the server and the connection."""
        if self._instance is not None:
            await self._instance.channel.close(None)
        if self._server is not None:
            await self._server.stop(None)


class _Answers(grpc.GenericRpcHandler):
    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self._answers = answers

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        name = handler_call_details.method
        if name not in self._answers:
            return None
        makers: dict[Cardinality, Any] = {
            Cardinality(False, False): grpc.unary_unary_rpc_method_handler,
            Cardinality(False, True): grpc.unary_stream_rpc_method_handler,
            Cardinality(True, False): grpc.stream_unary_rpc_method_handler,
            Cardinality(True, True): grpc.stream_stream_rpc_method_handler,
        }
        answer, kind = self._answers[name], METHODS.get(name, Cardinality(False, False))
        if kind.response_streams and inspect.iscoroutinefunction(answer):
            return grpc.stream_stream_rpc_method_handler(answer)  # it reads and writes by hand
        return makers[kind](answer)


@dataclass
class ScriptedPool:
    """Keeps workers for one model: hands out the first that lives, or what `refusal` says."""

    workers: list[ScriptedWorker] = field(default_factory=list)
    refusal: GatewayError | None = None
    holds: int = 0
    acquired: int = 0
    statuses: dict[str, ModelStatus] = field(default_factory=dict)
    watchers: list["asyncio.Queue[ModelStatus]"] = field(default_factory=list)
    load_error: GatewayError | None = None
    loads: list[tuple[str, LoadOptions | None, bool]] = field(default_factory=list)
    keepings: list[tuple[Keeping, bool]] = field(default_factory=list)
    restored: dict[str, tuple[LoadOptions, Keeping]] = field(default_factory=dict)
    memory_status: MemoryStatus = field(default_factory=lambda: MemoryStatus(3_000, 0))
    unloads: list[tuple[str, float]] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    may_load: asyncio.Event = field(default_factory=asyncio.Event)
    removed: set[str] = field(default_factory=set)

    async def acquire(self, model: str, timeout_s: float | None) -> Lease:
        """Return a hold on the first worker that lives."""
        self.acquired += 1
        if self.refusal is not None:
            raise self.refusal
        for worker in self.workers:
            if not worker.instance.exit.done():
                self.holds += 1
                return Lease(model, worker.instance, self._release)
        raise ModelUnloading(model)

    def _release(self) -> None:
        self.holds -= 1

    def state(self, model: str) -> ModelStatus:
        """Return what the test set, or UNLOADED."""
        return self.statuses.get(model, ModelStatus(model, is_removed=model in self.removed))

    def set(self, status: ModelStatus) -> None:
        """Change the status of a model and tell the watchers."""
        self.statuses[status.model] = status
        for watcher in self.watchers:
            watcher.put_nowait(status)

    def memory(self) -> MemoryStatus:
        """Return what the test set."""
        return self.memory_status

    def restore(self, model: str, options: LoadOptions, keeping: Keeping) -> bool:
        """Note the call."""
        self.restored[model] = (options, keeping)
        return True

    async def load(
        self,
        model: str,
        options: LoadOptions | None,
        wait: bool,
        *,
        keeping: Keeping | None = None,
        allow_eviction: bool = True,
    ) -> ModelStatus:
        """Note the call; where it waits, become ACTIVE once the test lets it."""
        self.loads.append((model, options, wait))
        self.keepings.append((keeping or Keeping(), allow_eviction))
        if self.load_error is not None:
            raise self.load_error
        if not wait:
            self.set(ModelStatus(model, ModelState.LOADING))
            return self.state(model)
        await self.may_load.wait()
        self.set(ModelStatus(model, ModelState.ACTIVE))
        return self.state(model)

    async def unload(self, model: str, grace_s: float, *, is_forgotten: bool = True) -> int:
        """Note the call."""
        self.unloads.append((model, grace_s))
        if is_forgotten:
            self.forgotten.append(model)
        self.set(ModelStatus(model))
        return 1234

    def put(self, model: str, configured: Callable[[], LoadOptions]) -> None:
        """Have a model, and tell the watchers."""
        self.removed.discard(model)
        self.set(self.state(model))

    def can_remove(self, model: str) -> bool:
        """Say whether the test left it unloaded."""
        return self.state(model).state is ModelState.UNLOADED

    def remove(self, model: str) -> bool:
        """Forget a model that is unloaded."""
        if not self.can_remove(model):
            return False
        self.removed.add(model)
        self.set(ModelStatus(model, is_removed=True))
        return True

    async def _changes(self, watcher: "asyncio.Queue[ModelStatus]") -> AsyncIterator[ModelStatus]:
        while True:
            yield await watcher.get()

    def watch(self) -> AsyncIterator[ModelStatus]:
        """Return every change from now on."""
        watcher: asyncio.Queue[ModelStatus] = asyncio.Queue()
        self.watchers.append(watcher)
        return self._changes(watcher)


async def no_description(model: CatalogueModel) -> model_pb2.Model:
    """Describe every checkpoint alike."""
    limits = model_pb2.ModelLimits(max_context_tokens=1_000_000)
    return model_pb2.Model(architecture="llama", tasks=[model_pb2.Model.TASK_GENERATE], limits=limits)


def catalogue(*models: CatalogueModel) -> Catalogue:
    """Return a catalogue of the given models, or of the one that the scripted worker holds."""
    return Catalogue(models or (CatalogueModel(MODEL, Path(__file__), (ALIAS,)),), no_description)


@dataclass
class RelayUnderTest:
    """A gateway that has nothing but the relay, with a client's channel to it."""

    address: str
    channel: grpc.aio.Channel
    parts: RelayParts
    pool: ScriptedPool
    ring: LogRing

    def call(self, method: str) -> Any:
        """Return the callable of a method over bytes."""
        kinds = METHODS[method]
        name = f"{'stream' if kinds.request_streams else 'unary'}_{'stream' if kinds.response_streams else 'unary'}"
        return getattr(self.channel, name)(method)


def relay_parts(pool: ScriptedPool, ring: LogRing, **limits: float) -> RelayParts:
    """Return the parts of a relay over `pool`; `limits` are named as in the settings."""
    return RelayParts(
        catalogue=catalogue(),
        admission=Admission(
            AdmissionLimits(
                max_requests=int(limits.get("max_requests", 100)),
                max_requests_per_model=int(limits.get("max_requests_per_model", 100)),
                max_waiting=int(limits.get("max_waiting", 0)),
                max_wait_s=limits.get("max_wait_s", 5.0),
                max_held_bytes=int(limits.get("max_held_bytes", 1 << 30)),
            )
        ),
        requests=Requests(),
        workers=pool,
        limits=RelayLimits(
            limits.get("max_request_s", 30.0), limits.get("first_message_s", 5.0), limits.get("slow_reader_s", 60.0)
        ),
        log=make_log(ring, "info", "json", stream=_Nowhere()),
    )


class _Nowhere(io.StringIO):
    """A stream that keeps nothing."""

    def write(self, s: str) -> int:
        """Forget `s`."""
        return len(s)


@contextlib.asynccontextmanager
async def relay_under_test(
    folder: Path, *answers: Mapping[str, Answer], **limits: float
) -> AsyncGenerator[RelayUnderTest]:
    """Serve a relay over one scripted worker for each of `answers`; they take over from each other in that order."""
    pool = ScriptedPool([ScriptedWorker(folder, one) for one in answers])
    ring = LogRing(1000)
    for worker in pool.workers:
        await worker.start()
    parts = relay_parts(pool, ring, **limits)
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    server.add_generic_rpc_handlers((Relay(METHODS, parts),))
    address = f"unix:{folder / 'gateway.sock'}"
    server.add_insecure_port(address)
    await server.start()
    channel = grpc.aio.insecure_channel(address, options=OPTIONS)
    try:
        yield RelayUnderTest(address, channel, parts, pool, ring)
    finally:
        await channel.close(None)
        await server.stop(None)
        for worker in pool.workers:
            await worker.stop()
