"""Work that waits for what comes from elsewhere."""

from __future__ import annotations

import threading

from tests.support.waiting import eventually
from tests.worker.counting import Counting, CountTo, last_of, running, submit


class Listening(Counting):
    """Counts only while a test says that there is something to count."""

    has_come = False
    num_asked = 0

    def plan(self, burst_s: float | None = None):
        self.num_asked += 1
        return super().plan(burst_s) if self.has_come else None


async def test_any_thread_wakes_the_engine(open_gate: threading.Event):
    workload = Listening(gate=open_gate)
    async with running(workload) as engine:
        outbox = submit(engine, CountTo("a", 1))
        await eventually(lambda: workload.num_asked > 0)
        workload.has_come = True
        thread = threading.Thread(target=engine.wake)
        thread.start()
        await last_of(outbox)
        thread.join()


async def test_a_flood_of_wakes_is_one(open_gate: threading.Event):
    workload = Listening()
    workload.has_come = True
    async with running(workload) as engine:
        outbox = submit(engine, CountTo("a", 1))
        await eventually(lambda: engine.steps > 0)  # the step waits at the gate
        for _ in range(10_000):
            engine.wake()
        assert engine._commands.qsize() <= 1
        workload.gate.set()
        await last_of(outbox)


async def test_what_comes_while_the_engine_looks_is_not_missed(open_gate: threading.Event):
    """Each wake is behind what it tells of, so whoever looks after it sees that."""
    workload = Listening(gate=open_gate)
    async with running(workload) as engine:
        for number in range(200):
            workload.has_come = False
            outbox = submit(engine, CountTo(str(number), 1))
            engine.wake()
            workload.has_come = True
            engine.wake()
            await last_of(outbox)
