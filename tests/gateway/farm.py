"""Workers of scripted processes."""

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import structlog

from gateway.back_off import BackOffLimits
from gateway.chances import Chances
from gateway.errors import GatewayError
from gateway.life_events import Event
from gateway.loads import Terms
from gateway.memory import MachineMemory
from gateway.model_status import LoadOptions, ModelState, ModelStatus
from gateway.pressure import Reading
from gateway.sockets import SocketFolder
from gateway.stop_ladder import StopLimits
from gateway.supervisor import Launch, Supervisor
from gateway.vitals import VitalLimits
from gateway.workers import Workers
from tests.support.scripted import STREAM_GENERATE, events_in, fake_worker_command, write_script
from tests.support.waiting import eventually

S = ModelState
MODELS: tuple[str, ...] = ("a", "b")
PATIENT = VitalLimits(heartbeat_s=0.05, suspect_after=1000, lost_after=1000)
QUICK_STOP = StopLimits(shutdown_s=1.0, dump_s=0.1, terminate_s=0.3, interrupt_s=0.3)
QUICK = BackOffLimits(first_s=0.05, longest_s=0.1, jitter=0.0)
HOLD = {STREAM_GENERATE: [{"send": "00"}, {"hang": True}]}
LIMIT_S = 10.0


class Farm:
    """Workers of two models, each with a script in a folder of its own."""

    def __init__(self, folder: Path, models: tuple[str, ...] = MODELS) -> None:
        self.folders = {model: folder / model for model in models}
        self.machine = MachineMemory(1 << 50, 1 << 50)
        self.footprint_bytes = 0
        self.sockets = SocketFolder()
        self.vital_limits = PATIENT
        self.stop_limits = QUICK_STOP
        self.told_options: list[LoadOptions] = []
        for path in self.folders.values():
            path.mkdir()
            write_script(path)
        self.workers = self.workers_with(QUICK)

    def workers_with(self, limits: BackOffLimits = QUICK, **terms: Any) -> Workers:
        log = structlog.wrap_logger(None, processors=[structlog.testing.LogCapture()])
        models = dict.fromkeys(self.folders, LoadOptions)
        chances = Chances(dice=random.Random(1), read=self.read, sample_s=0.05)
        self.workers = Workers(models, self.start_worker, self.stamp, Terms(limits, **terms), log, chances)
        return self.workers

    def read(self, pids: Iterable[int], now_s: float) -> Reading:
        """Measure a machine that has all the memory in the world."""
        return Reading(now_s, self.machine, dict.fromkeys(pids, self.footprint_bytes))

    def start_worker(self, model: str, options: LoadOptions, post: Callable[[Event], None]) -> Supervisor:
        self.told_options.append(options)
        settings = {"model": model, "checkpoint": str(self.folders[model] / "script.json")}
        launch = Launch(model, fake_worker_command(), settings, self.sockets, self.vital_limits, self.stop_limits)
        return Supervisor(launch, post, structlog.wrap_logger(None, processors=[structlog.testing.LogCapture()]))

    def stamp(self, model: str) -> object:
        return (self.folders[model] / "script.json").stat().st_mtime_ns

    def script(self, model: str = "a", **script: Any) -> None:
        write_script(self.folders[model], **script)

    def starts(self, model: str = "a") -> int:
        return len(events_in(self.folders[model], "started"))

    def is_in(self, state: ModelState, model: str = "a") -> bool:
        return self.workers.state(model).state is state

    async def until(self, state: ModelState, model: str = "a") -> None:
        await eventually(lambda: self.is_in(state, model), LIMIT_S)

    async def ready_pid(self, model: str = "a") -> int:
        with await self.workers.acquire(model, LIMIT_S) as lease:
            return lease.instance.pid


def footprint(status: ModelStatus) -> int:
    return status.stats.memory.footprint_bytes if status.stats is not None else 0


async def refusal(work: Any) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        await work
    return caught.value
