"""The one thread that owns the device: it loads, steps and frees, and runs whatever its workload brings.

A cycle takes the commands that came, ends what was cancelled, is overdue or is not read, lets the workload do one tick,
and wakes the event loop once with all that happened. With no jobs it blocks; the nearest deadline wakes it.
"""

import asyncio
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Generic

from worker.engine_state import FOLLOWING, EngineState
from worker.errand import Errand
from worker.errors import ModelLoading, ModelUnloading, QueueFull, WorkerError, incident_of
from worker.events import Completed, Event, Failed, Usage
from worker.job import Job, P, R, RequestView, T, Workload
from worker.outbox import Outbox
from worker.outcomes import reject, resolve, retrieve
from worker.turn import Alone, Turn

MAX_FAILURES_IN_A_ROW = 3
LONGEST_WAIT_S = 3600.0
# While jobs wait for their readers the thread shows this often that it is alive.
PAUSED_WAIT_S = 1.0
JOIN_S = 10.0
# A flood of requests must not keep those that run from their next step.
MAX_COMMANDS_A_CYCLE = 64


class Engine(Generic[R, P]):
    """Runs a workload on its own thread.

    `submit`, `cancel`, `do`, `requests`, `load` and `stop` are called on the event loop, `wake` anywhere. The counters
    may be read anywhere.

    Args:
        workload: what it runs; belongs to the engine's thread from `start` on.
        loop: where outboxes are filled and `on_fatal` is called.
        clock: monotonic seconds; deadlines are in its time.
        slow_reader_s: how long a reader may leave its outbox full.
        turn: on the device, which other processes may share; ticks and errands wait for it, the load does not.
        on_fatal: called once when the thread is beyond repair and has ended all jobs; the process should exit.

    Attributes:
        ticks: grows whenever work moves: a chunk, a row's step, progress of the load, an errand.
        steps: grows with each tick of the workload.
        load_progress: what the workload reported last.
    """

    def __init__(
        self,
        workload: Workload[R, P],
        loop: asyncio.AbstractEventLoop,
        *,
        clock: Callable[[], float] = time.monotonic,
        slow_reader_s: float = 30.0,
        turn: Turn | None = None,
        on_fatal: Callable[[], None] = lambda: None,
    ) -> None:
        self.ticks = 0
        self.steps = 0
        self.load_progress: object = None
        self.workload = workload
        self.turn: Turn = turn or Alone()
        self._loop = loop
        self._clock = clock
        self._slow_reader_s = slow_reader_s
        self._on_fatal = on_fatal
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._state = EngineState.LOADING
        self._live: dict[str, Job[R]] = {}
        self._loaded: asyncio.Future[object] = loop.create_future()
        self._loaded.add_done_callback(retrieve)
        self._ended: asyncio.Future[object] = loop.create_future()
        self._thread = threading.Thread(target=self._main, name="pomona-engine", daemon=True)
        self._aside = ThreadPoolExecutor(1, "pomona-aside")  # its thread starts with its first work
        # Below: the engine's thread only.
        self._admitted: dict[str, Job[R]] = {}
        self._batch: list[tuple[Outbox, Event]] = []
        self._is_woken = False  # set anywhere
        self._failures = 0
        self._errands: deque[Callable[[], None]] = deque()
        self._has_work = self._is_held_up = False  # the latter while another has the turn
        self._stop_at: float | None = None
        self._num_aborted = 0

    @property
    def state(self) -> EngineState:
        """What the engine takes now."""
        return self._state

    def start(self) -> None:
        """Start the thread, which loads first."""
        self._thread.start()

    async def load(self) -> object:
        """Wait for the load and return what the workload made of it; raises what the load raised."""
        return await asyncio.shield(self._loaded)

    def submit(self, request: R, outbox: Outbox) -> None:
        """Take a request; from now on its outbox gets events, the last of them `Completed` or `Failed`.

        Raises:
            ModelLoading: the load is not done.
            ModelUnloading: the engine stops or has ended.
            QueueFull: as many requests run and wait as may.
        """
        job = Job(request, outbox, self._clock())
        with self._lock:
            self._check_ready()
            if len(self._live) >= self.workload.max_jobs:
                raise QueueFull(len(self._live))
            self._live[request.key] = job
            outbox.notify_room(self.wake)
            self._commands.put(partial(self._admit, job))

    def cancel(self, key: str, error: WorkerError) -> bool:
        """End a request with `error` at the next tick; return whether it was in flight."""
        with self._lock:
            job = self._live.get(key)
        if job is None:
            return False
        self._commands.put(partial(self._fail, job, error))
        return True

    def wake(self) -> None:
        """Have the workload asked again for work, after something that it waits for has come; any thread may call."""
        if not self._is_woken:
            self._is_woken = True
            self._commands.put(self._wakened)

    async def do(self, work: Callable[[], T]) -> T:
        """Have something done on the engine's thread between two ticks, behind what was asked of it before.

        Raises:
            ModelLoading, ModelUnloading: as `submit`.
            Exception: whatever it raises.
        """
        errand = Errand(work)
        with self._lock:
            self._check_ready()
            self._commands.put(partial(self._errands.append, errand.run))
        return await errand.wait()

    def requests(self) -> list[RequestView]:
        """Describe the requests in flight, oldest first."""
        with self._lock:
            jobs = list(self._live.values())
        return [self.workload.view(job) for job in jobs]

    async def stop(self, grace_s: float) -> int:
        """Refuse new requests, let the running ones finish for `grace_s`, end the rest, free everything.

        A second call can only shorten the grace.

        Returns:
            How many requests were ended with `ModelUnloading`.
        """
        self._move(EngineState.STOPPING)
        if self._thread.ident is None:
            return 0
        stop_at = self._clock() + grace_s
        self._commands.put(partial(self._stop_by, stop_at))
        try:
            await asyncio.wait_for(asyncio.shield(self._ended), grace_s + JOIN_S)
        except TimeoutError:
            _log.error("engine thread does not end")
            return self._abandon()
        self._thread.join(JOIN_S)
        return self._num_aborted

    def post(self, job: Job[R], event: Event) -> None:
        """Send an event to a job's reader, with the rest of this tick's; see `Reporter`."""
        if self._admitted.get(job.request.key) is not job:
            return
        job.outbox.charge(event)
        self._batch.append((job.outbox, event))
        if isinstance(event, Completed | Failed):
            self._forget(job)

    def flush(self) -> None:
        """Wake the event loop once with all that was posted since; see `Reporter`."""
        if self._batch:
            batch, self._batch = self._batch, []
            self._call(_deliver, batch)

    def aside(self, work: Callable[[], T]) -> Future[T]:
        """Have plain Python done beside the engine's thread; see `Reporter`."""
        return self._aside.submit(work)

    def tick(self) -> None:
        """Say that work moves; see `Reporter`."""
        self.ticks += 1

    # The engine's thread.

    def _main(self) -> None:
        try:
            if self._load():
                self.turn.begin(self.wake)
                while self._cycle():
                    pass
        except BaseException as error:  # noqa: BLE001 (the engine's loop: whatever broke it, all jobs get a status)
            incident_of(error, "engine broke")
            self._failures = MAX_FAILURES_IN_A_ROW
        self._end()

    def _load(self) -> bool:
        try:
            loaded = self.workload.load(self._report_load)
        except BaseException as error:  # noqa: BLE001 (handed to whoever waits for the load)
            self._move(EngineState.ENDED)
            # A future's waiters are no place for what is not an `Exception`, such as a panic of native code.
            told = error if isinstance(error, Exception) else incident_of(error, "load failed")
            self._call(reject, self._loaded, told)
            return False
        self._move(EngineState.READY)
        self._call(resolve, self._loaded, loaded)
        return True

    def _report_load(self, progress: object) -> None:
        self.load_progress = progress
        self.ticks += 1

    def _cycle(self) -> bool:
        self._take_commands()
        self._end_overdue()
        if self._stop_at is not None and (not self._admitted or self._clock() >= self._stop_at):
            return False
        self._is_held_up = not self.turn.take(self.workload.claim)
        if self._is_held_up:
            self.ticks += 1  # it waits, but it is alive
        else:
            self._run_errands()
            self._has_work = self._tick()
        self.flush()
        return self._failures < MAX_FAILURES_IN_A_ROW

    def _take_commands(self) -> None:
        try:
            if not self._has_work or self._is_held_up:
                self._commands.get(timeout=self._wait_s())()
            for _ in range(MAX_COMMANDS_A_CYCLE):
                self._commands.get_nowait()()
        except queue.Empty:
            return

    def _wait_s(self) -> float:
        """Return how long nothing can become due."""
        moments = [moment for job in self._admitted.values() for moment in job.moments(self._slow_reader_s)]
        if self._stop_at is not None:
            moments.append(self._stop_at)
        limit = PAUSED_WAIT_S if self._admitted else LONGEST_WAIT_S
        return min([limit, *(max(0.0, moment - self._clock()) for moment in moments)])

    def _end_overdue(self) -> None:
        now = self._clock()
        for job in list(self._admitted.values()):
            if (error := job.overdue(now, self._slow_reader_s)) is not None:
                self._fail(job, error)

    def _tick(self) -> bool:
        """Let the workload do one tick; return whether there was work."""
        plan: P | None = None
        self.ticks += 1
        try:
            plan = self.workload.plan(self.turn.burst_s)
            if plan is None:
                self.turn.rest()
                return False
            self.steps += 1
            self.workload.run(plan, self)
            self.flush()
            self.turn.give(self.workload.claim)
        except BaseException as error:  # noqa: BLE001 (the engine's loop: the jobs concerned fail, the rest go on)
            self._fail_tick(plan, error)
        else:
            self._failures = 0
        return True

    def _fail_tick(self, plan: P | None, error: BaseException) -> None:
        """End the jobs of a tick that failed; all jobs, where not even a plan could be made."""
        is_known = isinstance(error, WorkerError)  # to the workload, which can go on
        self._failures += not is_known
        answer = error if is_known else incident_of(error, "step failed")
        keys = list(self._admitted) if plan is None else plan.keys
        for key in keys:
            if (job := self._admitted.get(key)) is not None:
                self._fail(job, answer)
        self.workload.recover()

    def _admit(self, job: Job[R]) -> None:
        self._admitted[job.request.key] = job
        if (error := job.overdue(self._clock(), self._slow_reader_s)) is not None:
            self.post(job, Failed(error, Usage()))
            return
        try:
            self.workload.admit(job)
        except WorkerError as error:
            self.post(job, Failed(error, Usage()))
        except BaseException as error:  # noqa: BLE001 (the engine's loop: this job fails, the rest go on)
            self.post(job, Failed(incident_of(error, "request was not admitted"), Usage()))

    def _fail(self, job: Job[R], error: Exception) -> None:
        if self._admitted.get(job.request.key) is job:
            usage = self.workload.drop(job.request.key)
            self.post(job, Failed(error, usage))

    def _forget(self, job: Job[R]) -> None:
        del self._admitted[job.request.key]
        with self._lock:
            self._live.pop(job.request.key, None)

    def _stop_by(self, stop_at: float) -> None:
        self._stop_at = stop_at if self._stop_at is None else min(self._stop_at, stop_at)

    def _wakened(self) -> None:
        self._is_woken = False

    def _end(self) -> None:
        """End every job with a status, free everything, and say so."""
        is_broken = self._failures >= MAX_FAILURES_IN_A_ROW
        self._move(EngineState.BROKEN if is_broken else EngineState.ENDED)
        # No more waiting: only what was submitted before the state changed.
        self._has_work, self._is_held_up = True, False
        while not self._commands.empty():
            self._take_commands()
        self._run_errands()
        for job in list(self._admitted.values()):
            self._num_aborted += 1
            self._abort(job, ModelUnloading())
        try:
            self.workload.close()
            self.turn.close()
        except BaseException as error:  # noqa: BLE001 (the engine's loop: the process is about to exit anyway)
            incident_of(error, "workload was not closed")
        self._aside.shutdown(wait=False, cancel_futures=True)
        self.flush()
        self._call(resolve, self._ended, None)
        if is_broken:
            self._call(self._on_fatal)

    def _abort(self, job: Job[R], error: WorkerError) -> None:
        try:
            self._fail(job, error)
        except BaseException as broken:  # noqa: BLE001 (the engine's loop: the reader gets its status all the same)
            incident_of(broken, "job was not dropped")
            self.post(job, Failed(error, Usage()))

    # Either thread.

    def _run_errands(self) -> None:
        while self._errands:
            self._errands.popleft()()
            self.ticks += 1

    def _check_ready(self) -> None:
        if self._state is not EngineState.READY:
            raise ModelLoading if self._state is EngineState.LOADING else ModelUnloading

    def _move(self, state: EngineState) -> None:
        with self._lock:
            if state in FOLLOWING[self._state]:
                _log.info("engine moved", extra={"before": self._state.value, "after": state.value})
                self._state = state

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        """Have the event loop call `function`; nothing where it is closed, for then nobody waits."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    def _abandon(self) -> int:
        """End all jobs from the event loop, because the thread hangs."""
        self._move(EngineState.ENDED)
        with self._lock:
            jobs = list(self._live.values())
            self._live.clear()
        for job in jobs:
            job.outbox.put(Failed(ModelUnloading(), Usage()))
        return len(jobs)


_log = logging.getLogger(__name__)


def _deliver(batch: list[tuple[Outbox, Event]]) -> None:
    for outbox, event in batch:
        outbox.put(event)
