"""Workers hit by signals in each state of their lives, and a gateway that stands still or whose clock jumps."""

import resource
import signal
import sys
import tempfile
from pathlib import Path

import pytest
from pomona.v1 import model_pb2

from tests.support import fault_rounds
from tests.support.fault_rounds import LIMITS, SERVING, SIGNALS, STATES, Stage
from tests.support.kill_rounds import LIMIT_S, MODEL, gateway_process
from tests.support.scripted import events_in, is_alive, write_script
from tests.support.waiting import wait_until

STANDSTILL_S = 2.5  # more than the reports that a worker may miss
DAY_S = 86_400
# Every state with the signal that nothing survives, every signal in the state that matters most; `bench` has them all.
ROUNDS = [(state, signal.SIGKILL) for state in STATES] + [("streaming", one) for one in SIGNALS[1:]]


@pytest.mark.parametrize(("state", "number"), ROUNDS)
def test_a_worker_that_is_hit_is_replaced_and_its_callers_are_told(
    tmp_path: Path, state: str, number: signal.Signals
) -> None:
    fault_rounds.play(state, number, tmp_path)


@pytest.mark.slow
def test_a_stop_while_a_model_is_unloaded_is_ended_by_force(tmp_path: Path) -> None:
    fault_rounds.play("draining", signal.SIGSTOP, tmp_path)


@pytest.mark.slow
def test_a_gateway_that_stood_still_does_not_blame_its_workers(tmp_path: Path) -> None:
    script = write_script(tmp_path, methods=SERVING)
    with gateway_process(script, **LIMITS) as gateway, gateway.channel() as channel:
        stage = Stage(tmp_path, gateway, channel)
        call = gateway.stream(channel)
        pid = stage.pid()
        gateway.process.send_signal(signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            wait_until(lambda: not is_alive(pid), STANDSTILL_S)
        gateway.process.send_signal(signal.SIGCONT)
        for _ in range(100):
            next(call)
        call.cancel()
        assert stage.ask() == ""
        assert [one["pid"] for one in events_in(tmp_path, "started")] == [pid]


def test_a_clock_that_jumps_by_a_day_changes_nothing(tmp_path: Path) -> None:
    script = write_script(tmp_path, methods=SERVING)
    with (
        gateway_process(script, defects=(f"jump:{DAY_S}",), **LIMITS) as gateway,
        gateway.channel() as channel,
    ):
        stage = Stage(tmp_path, gateway, channel)
        call = gateway.stream(channel)
        for _ in range(100):
            next(call)
        call.cancel()
        assert stage.ask() == ""
        assert len(events_in(tmp_path, "started")) == 1
        stage.unload()
        wait_until(lambda: not gateway.workers(), LIMIT_S)


def choose(stage: Stage, pinned: bool) -> None:
    """Choose something of a model that is kept beyond this server."""
    stage.models.LoadModel(model_pb2.LoadModelRequest(model=MODEL, pinned=pinned), timeout=LIMIT_S)


@pytest.mark.skipif(sys.platform != "linux", reason="the limits of another process can be set on Linux only")
def test_a_gateway_that_cannot_write_serves_on_says_so_and_writes_again_later(tmp_path: Path) -> None:
    script, kept = write_script(tmp_path, methods=SERVING), tmp_path / "state"
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        top = {"listen": f"unix:{short}/s", "state_folder": str(kept)}
        with gateway_process(script, top=top, **LIMITS) as gateway, gateway.channel() as channel:
            stage = Stage(tmp_path, gateway, channel)
            choose(stage, True)
            before = written(kept)
            pid = gateway.process.pid
            limits = resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
            choose(stage, False)
            assert stage.ask() == ""
            wait_until(lambda: "what callers choose is not written" in "".join(gateway.log), LIMIT_S)
            assert written(kept) == before
            resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
            stage.unload()
            wait_until(lambda: written(kept) != before, LIMIT_S)
            assert gateway.process.poll() is None


def written(folder: Path) -> dict[str, bytes]:
    """Return the files that are kept, by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix == ".json"}
