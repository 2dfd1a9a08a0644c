"""Rounds that hit a worker with a signal in each state of its life, and say what is wrong with what follows.

A round has a gateway of its own. Whatever happens to the worker, the gateway lives, whoever asked is served by the next
worker or told why not, and nothing of the old one is left.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from pomona.v1 import generation_pb2 as g
from pomona.v1 import model_pb2, model_pb2_grpc

from tests.support.kill_rounds import LIMIT_S, MODEL, GatewayProcess, end_of, gateway_process, reason_of
from tests.support.scripted import GENERATE, STREAM_GENERATE, events_in, is_alive, write_script
from tests.support.waiting import wait_until

SIGNALS = (signal.SIGKILL, signal.SIGABRT, signal.SIGBUS, signal.SIGSEGV, signal.SIGSTOP)
LIMITS: Mapping[str, Any] = {
    "back_off_first_s": 0.05,
    "back_off_limit_s": 0.1,
    "crash_budget": 1000,
    "heartbeat_s": 0.1,
    "suspect_after": 3,
    "lost_after": 10,
    "load_stall_s": 2.0,
    "dump_s": 0.1,
    "term_s": 0.5,
}
ANSWER = [{"read": 1}, {"tell": 0}]
TICKING = [{"read": 1}, {"tell": 4000, "interval_s": 0.005}]
SERVING = {GENERATE: ANSWER, STREAM_GENERATE: TICKING}
LOST = {"WORKER_DIED", "WORKER_STALLED"}


class Stage:
    """A gateway whose workers follow a script, and who asks it."""

    def __init__(self, folder: Path, gateway: GatewayProcess, channel: grpc.Channel) -> None:
        self.folder = folder
        self.gateway = gateway
        self.channel = channel
        self.models = model_pb2_grpc.ModelServiceStub(channel)

    def pid(self) -> int:
        """Return the newest worker's process."""
        wait_until(lambda: bool(events_in(self.folder, "started")), LIMIT_S)
        return events_in(self.folder, "started")[-1]["pid"]

    def ask(self) -> str:
        """Send a request; return its reason where it is not served."""
        call = self.channel.unary_unary(GENERATE, response_deserializer=g.GenerateResponse.FromString)
        try:
            answer: Any = call(g.GenerateRequest(model=MODEL).SerializeToString(), timeout=LIMIT_S)
        except grpc.RpcError as error:
            return reason_of(error)
        assert answer.resolved_model.model == MODEL
        return ""

    def unload(self) -> None:
        """Unload the model."""
        self.models.UnloadModel(model_pb2.UnloadModelRequest(model=MODEL), timeout=LIMIT_S)


Round = Callable[[Stage, signal.Signals, ThreadPoolExecutor], None]


def while_it_loads(stage: Stage, number: signal.Signals, pool: ThreadPoolExecutor) -> None:
    """Hit a worker that has not loaded yet: who waits for it has the next one."""
    write_script(stage.folder, methods=SERVING, reports=1000, pause_s=0.05)
    asked = pool.submit(stage.ask)
    pid = stage.pid()
    write_script(stage.folder, methods=SERVING)
    os.kill(pid, number)
    assert asked.result(LIMIT_S) == ""
    wait_until(lambda: not is_alive(pid), LIMIT_S)


def while_it_is_idle(stage: Stage, number: signal.Signals, pool: ThreadPoolExecutor) -> None:
    """Hit a worker that has nothing to do: the next request has another."""
    assert stage.ask() == ""
    pid = stage.pid()
    os.kill(pid, number)
    if number is signal.SIGSTOP:
        wait_until(lambda: not is_alive(pid), LIMIT_S)
    assert stage.ask() == ""
    assert stage.pid() != pid


def before_it_begins(stage: Stage, number: signal.Signals, pool: ThreadPoolExecutor) -> None:
    """Hit a worker that has a request and has not begun it: the next one answers, and the caller sees nothing."""
    write_script(stage.folder, methods={GENERATE: [{"read": 1}, {"hang": True}]})
    asked = pool.submit(stage.ask)
    wait_until(lambda: bool(events_in(stage.folder, "began")), LIMIT_S)
    write_script(stage.folder, methods=SERVING)
    os.kill(stage.pid(), number)
    assert asked.result(LIMIT_S) == ""


def within_a_stream(stage: Stage, number: signal.Signals, pool: ThreadPoolExecutor) -> None:
    """Hit a worker in the midst of a stream: that ends with its reason, and the next request is served."""
    call = stage.gateway.stream(stage.channel)
    os.kill(stage.pid(), number)
    error = end_of(call)
    assert error is not None
    assert (error.code(), reason_of(error) in LOST) == (grpc.StatusCode.UNAVAILABLE, True), reason_of(error)
    assert stage.ask() == ""


def while_it_drains(stage: Stage, number: signal.Signals, pool: ThreadPoolExecutor) -> None:
    """Hit a worker that is being unloaded and has a stream left: the unload ends, and nothing is started again."""
    call = stage.gateway.stream(stage.channel)
    pid = stage.pid()
    unloading = pool.submit(stage.unload)
    wait_until(lambda: stage.gateway.model(stage.channel).state == model_pb2.MODEL_STATE_DRAINING, LIMIT_S)
    os.kill(pid, number)
    error = end_of(call)
    assert error is not None
    assert reason_of(error) in {*LOST, "MODEL_UNLOADING"}
    unloading.result(LIMIT_S)
    assert len(events_in(stage.folder, "started")) == 1
    assert stage.gateway.model(stage.channel).state == model_pb2.MODEL_STATE_UNLOADED


STATES: Mapping[str, Round] = {
    "loading": while_it_loads,
    "idle": while_it_is_idle,
    "not begun": before_it_begins,
    "streaming": within_a_stream,
    "draining": while_it_drains,
}


def play(state: str, number: signal.Signals, folder: Path) -> None:
    """Play one round with a new gateway, and see that it lives and that no worker but its last is left."""
    script = write_script(folder, methods=SERVING)
    with contextlib.ExitStack() as held:
        gateway = held.enter_context(gateway_process(script, **LIMITS))
        stage = Stage(folder, gateway, held.enter_context(gateway.channel()))
        STATES[state](stage, number, held.enter_context(ThreadPoolExecutor(1)))
        assert gateway.process.poll() is None
        wait_until(lambda: len(gateway.workers()) <= 1, LIMIT_S)
        stage.unload()
        wait_until(lambda: not gateway.workers(), LIMIT_S)
