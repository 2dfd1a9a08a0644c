"""What happens when processes are killed, stopped or never answer: real gateways, real processes, real sockets.

Ten rounds each, three where each round loads the demo model; `python -m bench.kill` runs as many as it is told to.
"""

import os
import random
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from pomona.v1 import model_pb2, model_pb2_grpc

from tests.support import kill_rounds
from tests.support.kill_rounds import QUICK, STALLS, GatewayProcess, end_of, gateway_process, reason_of
from tests.support.scripted import STREAM_GENERATE, events_in, write_script
from tests.support.served import demo_checkpoint
from tests.support.waiting import wait_until

ROUNDS = 10
ROUNDS_WITH_LOADS = 3
SLOW_LIMIT_S = 300  # on a machine that is busy with other things
STATUS_LIMIT_S = 10.0  # The figure is 0.1 s on a machine that does nothing else; `bench` measures it.
ORPHAN_LIMIT_S = 10.0  # The figure is 0.25 s.
TICKING = {STREAM_GENERATE: [{"send": "0a00", "count": 100_000, "interval_s": 0.005}]}


@pytest.fixture
def dice() -> random.Random:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")  # shown when the test fails
    return random.Random(seed)


@contextmanager
def serving(checkpoint: Path, **supervision: Any) -> Generator[tuple[GatewayProcess, grpc.Channel]]:
    with gateway_process(checkpoint, **QUICK, **supervision) as gateway, gateway.channel() as channel:
        yield gateway, channel


def test_a_worker_killed_in_the_midst_of_a_stream_is_told_at_once_and_replaced(
    tmp_path: Path, dice: random.Random
) -> None:
    with serving(write_script(tmp_path, methods=TICKING)) as (gateway, channel):
        outages = [kill_rounds.kill_worker(gateway, channel, dice) for _ in range(ROUNDS)]
    assert max(outage.status_s for outage in outages) < STATUS_LIMIT_S


@pytest.mark.slow
@pytest.mark.timeout(SLOW_LIMIT_S)
def test_a_stopped_worker_is_seen_as_a_stall_and_replaced(tmp_path: Path, dice: random.Random) -> None:
    with serving(write_script(tmp_path, methods=TICKING), **STALLS) as (gateway, channel):
        for _ in range(ROUNDS):
            kill_rounds.stop_worker(gateway, channel, dice)


@pytest.mark.slow
@pytest.mark.timeout(SLOW_LIMIT_S)
def test_a_killed_gateway_leaves_no_worker(tmp_path: Path, dice: random.Random) -> None:
    script = write_script(tmp_path, reports=5, pause_s=0.05, grandchild=True)
    left_s = [kill_rounds.kill_gateway(script, dice) for _ in range(ROUNDS)]
    assert max(left_s) < ORPHAN_LIMIT_S


def test_a_process_that_escapes_is_seen_to_be_left(tmp_path: Path, dice: random.Random) -> None:
    with pytest.raises(TimeoutError):
        kill_rounds.kill_gateway(write_script(tmp_path, grandchild="escaped"), dice, is_caught=True)


def test_a_stream_that_runs_when_the_gateway_is_asked_to_end_finishes(tmp_path: Path) -> None:
    steps = [{"send": "0a00"}, {"wait_s": 0.5}, {"send": "0a00", "count": 3}]
    with serving(write_script(tmp_path, methods={STREAM_GENERATE: steps})) as (gateway, channel):
        call = gateway.stream(channel)
        gateway.process.send_signal(signal.SIGTERM)
        assert list(call) == [b"\n\x00"] * 3
        assert gateway.process.wait(kill_rounds.LIMIT_S) == 0
        assert gateway.workers() == set()


def test_a_new_call_is_refused_while_the_gateway_drains(tmp_path: Path) -> None:
    with serving(write_script(tmp_path, methods=TICKING)) as (gateway, channel):
        call = gateway.stream(channel)
        gateway.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "server drains" in "".join(gateway.log), kill_rounds.LIMIT_S)
        with pytest.raises(grpc.RpcError) as caught:
            gateway.stream(channel)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE  # nobody listens any more, so there may be no reason
        call.cancel()
        assert gateway.process.wait(kill_rounds.LIMIT_S) == 0


def test_a_second_signal_hurries_the_end_of_a_worker_that_stands_still(tmp_path: Path) -> None:
    script = write_script(tmp_path, stubborn=True, methods=TICKING)
    with serving(script, stop_grace_s=60.0, term_s=60.0, dump_s=60.0) as (gateway, channel):
        gateway.stream(channel).cancel()
        os.kill(gateway.model(channel).workers[0].pid, signal.SIGSTOP)
        gateway.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "server drains" in "".join(gateway.log), kill_rounds.LIMIT_S)
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.process.wait(kill_rounds.LIMIT_S) == 0
        assert gateway.workers() == set()


def test_a_worker_that_somebody_else_ends_is_replaced_without_an_outage(tmp_path: Path) -> None:
    with serving(write_script(tmp_path, methods=TICKING, lingers=True)) as (gateway, channel):
        call = gateway.stream(channel)
        pid = gateway.model(channel).workers[0].pid
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: gateway.model(channel).state == model_pb2.MODEL_STATE_DRAINING, kill_rounds.LIMIT_S)
        next(call)
        call.cancel()
        gateway.stream(channel).cancel()
        assert gateway.model(channel).workers[0].pid != pid


def refusal(gateway: GatewayProcess, channel: grpc.Channel) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        gateway.stream(channel)
    return caught.value


def test_a_worker_that_never_becomes_ready_is_given_up(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"load_stall_s": 1.0, "crash_budget": 2, "back_off_first_s": 0.05}
    with (
        gateway_process(write_script(tmp_path, load="stuck"), **limits) as gateway,
        gateway.channel() as channel,
    ):
        error = refusal(gateway, channel)
        assert (error.code(), reason_of(error)) == (grpc.StatusCode.FAILED_PRECONDITION, "MODEL_FAILED")
        assert "the load stands still" in str(error.details())
        assert gateway.workers() == set()


def test_a_worker_that_crashes_on_load_five_times_leaves_its_last_words(tmp_path: Path) -> None:
    script = write_script(tmp_path, load="crash", last_words="RuntimeError: the shelf /opt/models is empty")
    with (
        gateway_process(script, back_off_first_s=0.05, back_off_limit_s=0.1) as gateway,
        gateway.channel() as channel,
    ):
        error = refusal(gateway, channel)
        assert (error.code(), reason_of(error)) == (grpc.StatusCode.FAILED_PRECONDITION, "MODEL_FAILED")
        assert "exit code 1: RuntimeError: the shelf models is empty" in str(error.details())
        assert len(events_in(tmp_path, "started")) == 5
        model = gateway.model(channel)
        assert (model.state, model.failure.reason) == (model_pb2.MODEL_STATE_FAILED, "MODEL_FAILED")
        assert reason_of(refusal(gateway, channel)) == "MODEL_FAILED"
        assert len(events_in(tmp_path, "started")) == 5


def test_an_unloaded_model_has_no_process_and_loads_again(tmp_path: Path) -> None:
    with serving(write_script(tmp_path, methods=TICKING)) as (gateway, channel):
        gateway.stream(channel).cancel()
        wait_until(lambda: len(gateway.workers()) == 1, kill_rounds.LIMIT_S)  # what estimated its size is gone too
        stub = model_pb2_grpc.ModelServiceStub(channel)
        answer = stub.UnloadModel(model_pb2.UnloadModelRequest(model=kill_rounds.MODEL), timeout=kill_rounds.LIMIT_S)
        assert gateway.workers() == set()
        assert answer.freed_bytes > 1 << 20
        gateway.stream(channel).cancel()
        wait_until(lambda: len(gateway.workers()) == 1, kill_rounds.LIMIT_S)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(SLOW_LIMIT_S)
def test_a_real_worker_killed_in_the_midst_of_a_stream_is_replaced(dice: random.Random) -> None:
    with gateway_process(demo_checkpoint(), is_fake=False, **QUICK) as gateway, gateway.channel() as channel:
        for _ in range(ROUNDS_WITH_LOADS):
            kill_rounds.kill_worker(gateway, channel, dice)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(SLOW_LIMIT_S)
def test_a_killed_gateway_leaves_no_real_worker(dice: random.Random) -> None:
    left_s = [kill_rounds.kill_gateway(demo_checkpoint(), dice, is_fake=False, span_s=1.5) for _ in range(ROUNDS)]
    assert max(left_s) < ORPHAN_LIMIT_S


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(SLOW_LIMIT_S)
def test_a_real_stream_that_runs_when_the_gateway_is_asked_to_end_finishes() -> None:
    with gateway_process(demo_checkpoint(), is_fake=False, **QUICK) as gateway, gateway.channel() as channel:
        call = gateway.stream(channel, 4)
        gateway.process.send_signal(signal.SIGTERM)
        assert end_of(call) is None
        assert gateway.process.wait(kill_rounds.LIMIT_S) == 0
        assert gateway.workers() == set()
