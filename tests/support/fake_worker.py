"""A worker without a model: a real process that keeps the spawn contract and otherwise does what its script says.

Run as a program, never imported by a test: `tests.support.scripted` writes scripts and gives the command. With
`describe` as its first argument it prints a description at once. Otherwise its script is the JSON object in the file
that its settings name as the checkpoint:

    reports         how many load reports come before the model is ready
    errands         how many ticks follow them, as where adapters are mounted
    pause_s         the time between two of them
    load            "ok", "hang" (no report at all), "stuck" (one report again and again), "crash", "fail"
    crashes         how many starts crash before one loads; counted in the file `<script>.starts`
    last_words      what it writes to standard error before it crashes
    failure         reason, message and metadata of a load that fails
    own_id          the instance id that it answers with
    stubborn        it takes no notice of Shutdown, SIGTERM and SIGINT
    lingers         at SIGTERM it takes its leave but does not go before Shutdown
    step_tokens     of the step that it says it computes
    frozen          its compute ticks stand still while requests run
    turns           "give" or "keep": once ready it takes turns, and gives them back when others wait, or never
    grandchild      it starts a process in its group, or, where it says "escaped", in one of its own
    tasks           of the description, names of `Model.Task`; TASK_GENERATE alone where there are none
    events          a file that gets a JSON line for each thing that happens
    noted           which of them; all where it is not there
    methods         full method name, or "" for any, -> list of steps

Steps of a method, in order; every method is served for every cardinality, with raw bytes:

    {"read": n}                        take n requests; "all" takes them to the half-close
    {"metadata": {...}}                send initial metadata; a key in it says that the request has begun
    {"send": "hex", "count": n, "interval_s": s}
    {"echo": true}                     send each request back until the half-close
    {"reflect": true}                  send the call's metadata as a JSON object
    {"tell": n, "interval_s": s, "defect": "...", "every": n}
                                       answer as the contract says, with its own model in each of n deltas; every n-th
                                       answer has a defect: "model", "gap", "twice" or "silent"
    {"wait_s": s}                      do nothing for a while
    {"trailers": {...}}                set the trailing metadata; of a key that ends in -bin, hexadecimal
    {"error": {"code", "reason", "message", "metadata"}}    end with that status and an ErrorInfo
    {"raise": true}                    end with an exception
    {"hang": true}                     do nothing until cancelled
    {"drop": true}                     close every connection
    {"kill": "SIGKILL"}                send the process itself a signal
"""

import os
import signal
import threading


def watch_lifeline() -> None:
    while os.read(9, 64):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


threading.Thread(target=watch_lifeline, daemon=True).start()

import asyncio  # noqa: E402
import contextlib  # noqa: E402
import faulthandler  # noqa: E402
import json  # noqa: E402
import socket  # noqa: E402
import struct  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from collections.abc import AsyncIterator  # noqa: E402
from functools import partial  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import grpc  # noqa: E402
import grpc.aio  # noqa: E402
from google.protobuf import any_pb2  # noqa: E402
from google.rpc import error_details_pb2, status_pb2  # noqa: E402
from pomona.v1 import common_pb2, model_pb2, server_pb2, worker_pb2, worker_pb2_grpc  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[2]))  # it is run as a program, and from anywhere

from tests.support.fake_answers import Teller  # noqa: E402

TICK_S = 0.01
TURN = struct.Struct("<BBHIQ")
OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1), ("grpc.so_reuseport", 0))
WORKER_SERVICE = "/pomona.v1.WorkerService/"


class FakeWorker:
    """What the script says, and where its execution is."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.script_path = Path(settings["checkpoint"])
        self.script: dict[str, Any] = json.loads(self.script_path.read_text())
        self.state = model_pb2.MODEL_STATE_LOADING
        self.progress = model_pb2.LoadProgress(phase="weights", bytes_total=max(1, self.script.get("reports", 0)))
        self.failure: common_pb2.Failure | None = None
        self.changed = asyncio.Event()
        self.ended = asyncio.Event()
        self.running: dict[int, str] = {}
        self.ticks = 0
        self.teller = Teller(self.settings["model"], self.settings["instance_id"])
        self.exit_code = 0

    async def run(self) -> int:
        self.server = grpc.aio.server(options=OPTIONS)
        self.note("started", pid=os.getpid(), environment=dict(os.environ), settings=self.settings)
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(WorkerServicer(self), self.server)
        self.server.add_generic_rpc_handlers((ScriptedHandler(self),))
        self.server.add_insecure_port(f"unix:{self.settings['socket']}")
        await self.server.start()
        self.catch_signals()
        async with asyncio.TaskGroup() as group:
            load = group.create_task(self.load())
            tick = group.create_task(self.tick())
            await self.ended.wait()
            load.cancel()
            tick.cancel()
        await self.server.stop(0.05)
        return self.exit_code

    def catch_signals(self) -> None:
        faulthandler.register(signal.SIGUSR1)
        for number in (signal.SIGTERM, signal.SIGINT):
            if self.script.get("stubborn"):
                signal.signal(number, signal.SIG_IGN)
            else:
                end = self.drain if self.script.get("lingers") else self.ended.set
                asyncio.get_running_loop().add_signal_handler(number, end)

    async def load(self) -> None:
        how = self.script.get("load", "ok")
        if self.script.get("grandchild"):
            escapes = self.script["grandchild"] == "escaped"
            command = [sys.executable, "-c", "import time; time.sleep(600)"]
            child = subprocess.Popen(command, start_new_session=escapes)  # noqa: ASYNC220
            self.note("grandchild", pid=child.pid)
        for number in range(self.script.get("reports", 0)):
            self.progress.bytes_done = number + 1
            self.tell()
            await asyncio.sleep(self.script.get("pause_s", 0.0))
        for _ in range(self.script.get("errands", 0)):
            self.ticks += 1
            self.tell()
            await asyncio.sleep(self.script.get("pause_s", 0.0))
        if how == "crash" or self.count_start() <= self.script.get("crashes", 0):
            sys.stderr.write(self.script.get("last_words", "it crashed as its script says") + "\n")
            sys.stderr.flush()
            os._exit(1)
        if how == "fail":
            await self.fail()
        elif how == "ok":
            self.state = model_pb2.MODEL_STATE_ACTIVE
            self.tell()
            self.note("ready", pid=os.getpid())
            if how := self.script.get("turns"):
                threading.Thread(target=self.take_turns, args=(how == "give",), daemon=True).start()

    def take_turns(self, gives: bool) -> None:
        line = socket.socket(fileno=11)
        line.sendall(TURN.pack(1, 2, 0, 0, 0))
        while len(data := line.recv(TURN.size, socket.MSG_WAITALL)) == TURN.size:
            kind, detail, _, lease, _ = TURN.unpack(data)
            if kind == 5:
                self.note("turn", lease=lease)
            if gives and (kind == 6 or detail & 1):
                time.sleep(TICK_S)
                line.sendall(TURN.pack(2, 3, 0, lease, 10_000))

    def drain(self) -> None:
        self.state = model_pb2.MODEL_STATE_DRAINING
        self.tell()

    def count_start(self) -> int:
        starts = Path(f"{self.script_path}.starts")
        with starts.open("ab") as file:
            file.write(b".")
        return starts.stat().st_size

    async def fail(self) -> None:
        said: dict[str, Any] = {"reason": "CHECKPOINT_REJECTED", "message": "it is one.", "metadata": {}}
        said |= self.script.get("failure", {})
        self.failure = common_pb2.Failure(**said)
        self.state = model_pb2.MODEL_STATE_FAILED
        self.exit_code = 3
        self.tell()
        await asyncio.sleep(TICK_S * 5)
        sys.stderr.write(json.dumps(said) + "\n")
        self.ended.set()

    async def tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if self.running and not self.script.get("frozen"):
                self.ticks += 1

    def tell(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def note(self, event: str, **facts: Any) -> None:
        path = self.script.get("events")
        if path and event in self.script.get("noted", [event]):
            with Path(path).open("a") as file:
                file.write(json.dumps({"event": event, "time": time.monotonic(), **facts}) + "\n")

    def report(self, number: int) -> worker_pb2.WatchWorkerResponse:
        stats = server_pb2.ModelStats(model=self.settings["model"], running_requests=len(self.running))
        stats.memory.footprint_bytes = 1 << 20
        report = worker_pb2.WatchWorkerResponse(
            event_number=number,
            state=self.state,
            compute_ticks_total=self.ticks,
            steps_total=self.ticks,
            stats=stats,
            step_tokens=self.script.get("step_tokens", 0),
        )
        if self.state == model_pb2.MODEL_STATE_LOADING:
            report.load_progress.CopyFrom(self.progress)
        elif self.state == model_pb2.MODEL_STATE_ACTIVE:
            report.model.model = self.settings["model"]
            report.model.revision = "scripted"
        elif self.failure is not None:
            report.failure.CopyFrom(self.failure)
        return report


class WorkerServicer(worker_pb2_grpc.WorkerServiceServicer):
    """The private service, as the contract says, unless the script says otherwise."""

    def __init__(self, worker: FakeWorker) -> None:
        self.worker = worker

    async def check(self, context: Any) -> None:
        if dict(context.invocation_metadata()).get("x-pomona-secret") != self.worker.settings["secret"]:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "wrong secret")

    async def Handshake(self, request: Any, context: Any) -> worker_pb2.HandshakeResponse:  # noqa: N802
        await self.check(context)
        settings = self.worker.settings
        return worker_pb2.HandshakeResponse(
            instance_id=self.worker.script.get("own_id", settings["instance_id"]),
            model=settings["model"],
            schema_revision=1,
            pid=os.getpid(),
        )

    async def WatchWorker(self, request: Any, context: Any) -> AsyncIterator[worker_pb2.WatchWorkerResponse]:  # noqa: N802
        await self.check(context)
        interval_s = request.interval.ToNanoseconds() / 1e9 or 1.0
        number = 0
        while True:
            changed = self.worker.changed
            if self.worker.script.get("load") != "hang":
                number += 1
                yield self.worker.report(number)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), interval_s)

    async def ListWorkerRequests(self, request: Any, context: Any) -> worker_pb2.ListWorkerRequestsResponse:  # noqa: N802
        await self.check(context)
        running = [server_pb2.RequestInfo(method=method) for method in self.worker.running.values()]
        return worker_pb2.ListWorkerRequestsResponse(requests=running)

    async def CancelWorkerRequest(self, request: Any, context: Any) -> worker_pb2.CancelWorkerRequestResponse:  # noqa: N802
        await self.check(context)
        return worker_pb2.CancelWorkerRequestResponse(found=False)

    async def AnnounceEnding(self, request: Any, context: Any) -> worker_pb2.AnnounceEndingResponse:  # noqa: N802
        await self.check(context)
        self.worker.note("ending", remaining_s=request.remaining.ToNanoseconds() / 1e9)
        return worker_pb2.AnnounceEndingResponse()

    async def SetWorkerLogLevel(self, request: Any, context: Any) -> worker_pb2.SetWorkerLogLevelResponse:  # noqa: N802
        await self.check(context)
        self.worker.note("log level", level=request.level)
        return worker_pb2.SetWorkerLogLevelResponse()

    async def Shutdown(self, request: Any, context: Any) -> worker_pb2.ShutdownResponse:  # noqa: N802
        await self.check(context)
        self.worker.note("shutdown", running=len(self.worker.running))
        if self.worker.script.get("stubborn"):
            await asyncio.Event().wait()
        self.worker.ended.set()
        return worker_pb2.ShutdownResponse(aborted_requests=len(self.worker.running))


class ScriptedHandler(grpc.GenericRpcHandler):
    """Every other method, as the script says."""

    def __init__(self, worker: FakeWorker) -> None:
        self.worker = worker

    def service(self, handler_call_details: Any) -> "grpc.RpcMethodHandler[Any, Any] | None":
        method: str = handler_call_details.method
        methods: dict[str, list[dict[str, Any]]] = self.worker.script.get("methods", {})
        steps = methods.get(method, methods.get(""))
        if steps is None or method.startswith(WORKER_SERVICE):
            return None
        # The library looks for an async generator function, and looks through a partial.
        return grpc.stream_stream_rpc_method_handler(partial(self.follow, method, steps))

    async def follow(
        self, method: str, steps: list[dict[str, Any]], requests: AsyncIterator[bytes], context: Any
    ) -> AsyncIterator[bytes]:
        self.worker.running[id(context)] = method
        self.worker.note("began", method=method)
        try:
            for step in steps:
                async for message in follow_step(self.worker, step, requests, context):
                    yield message
            self.worker.note("finished", method=method)
        except (asyncio.CancelledError, GeneratorExit):
            self.worker.note("cancelled", method=method)
            raise
        finally:
            del self.worker.running[id(context)]


async def follow_step(
    worker: FakeWorker, step: dict[str, Any], requests: AsyncIterator[bytes], context: Any
) -> AsyncIterator[bytes]:
    match step:
        case {"send": payload}:
            messages = send(bytes.fromhex(payload), step.get("count", 1), step.get("interval_s", 0.0))
        case {"echo": True}:
            messages = requests
        case {"reflect": True}:
            messages = reflect(context)
        case {"tell": count}:
            messages = worker.teller.tell(count, step, context)
        case {"read": count}:
            await read(requests, count)
            return
        case _:
            await act(worker, step, context)
            return
    async for message in messages:
        yield message


async def reflect(context: Any) -> AsyncIterator[bytes]:
    seen = {key: str(value) for key, value in context.invocation_metadata()}
    yield json.dumps(seen | {"time_remaining": context.time_remaining()}).encode()


async def send(message: bytes, count: int, interval_s: float) -> AsyncIterator[bytes]:
    for number in range(count):
        if interval_s and number:
            await asyncio.sleep(interval_s)
        yield message


async def read(requests: AsyncIterator[bytes], count: int | str) -> None:
    taken = 0
    while taken != count:
        try:
            await anext(requests)
        except StopAsyncIteration:
            return
        taken += 1


async def act(worker: FakeWorker, step: dict[str, Any], context: Any) -> None:
    match step:
        case {"metadata": pairs}:
            await context.send_initial_metadata(tuple(pairs.items()))
        case {"trailers": pairs}:
            told = {key: bytes.fromhex(value) if key.endswith("-bin") else value for key, value in pairs.items()}
            context.set_trailing_metadata(tuple(told.items()))
        case {"wait_s": seconds}:
            await asyncio.sleep(seconds)
        case {"error": said}:
            await abort(said, context)
        case {"hang": True}:
            await asyncio.Event().wait()
        case {"drop": True}:
            await worker.server.stop(0)
        case {"kill": name}:
            os.kill(os.getpid(), signal.Signals[name])
        case _:
            raise RuntimeError("as its script says")


async def abort(said: dict[str, Any], context: Any) -> None:
    code = grpc.StatusCode[said["code"]]
    detail = any_pb2.Any()
    detail.Pack(
        error_details_pb2.ErrorInfo(reason=said.get("reason", ""), domain="pomona", metadata=said.get("metadata", {}))
    )
    message = said.get("message", "as its script says")
    status = status_pb2.Status(code=code.value[0], message=message, details=[detail])
    await context.abort(code, message, (("grpc-status-details-bin", status.SerializeToString()),))


def main() -> int:
    if sys.argv[1:2] == ["describe"]:
        script = json.loads(Path(sys.argv[2]).read_text())
        tasks = script.get("tasks", ["TASK_GENERATE"])
        sys.stdout.write(json.dumps({"architecture": "scripted", "tasks": tasks}))
        return 0
    with os.fdopen(10, "rb") as file:
        settings = json.load(file)
    return asyncio.run(FakeWorker(settings).run())


if __name__ == "__main__":
    sys.exit(main())
