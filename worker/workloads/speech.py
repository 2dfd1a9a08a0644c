"""Speech: windows of all requests through one model, together.

A tick listens to a little of what came, hears a new window or a few in one pass of the encoder, and takes every open
window one token further in one pass of the decoder. What a window says does not depend on the others where the kernels
of the CPU compute; on the reference path every window has passes of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import mlx.core as mx

from models.registry import LoadProgress
from models.whisper.audio import pad_frames
from models.whisper.decoding import language_probabilities
from models.whisper.session import Window
from models.whisper.state import Memory
from native import kernels
from worker.claim import Claim
from worker.errors import WorkerError, incident_of
from worker.events import Completed, Failed, SpeechSegment, Started, Usage
from worker.job import Counts, Job, Reporter, RequestView
from worker.phases import PhaseClock
from worker.row import KernelFailedError
from worker.speech.bounds import SpeechBounds
from worker.speech.fairness import Turns, Urgency
from worker.speech.hearing import Hearing, Transcriber
from worker.speech.loaded import LoadedSpeech
from worker.speech.open_window import OpenWindow
from worker.speech.request import SpeechRequest
from worker.speech.stats import SpeechStats
from worker.speech.task import SpeechTask
from worker.workloads.errors import NotLoadedError

# How long a tick may listen.
LISTEN_S = 0.05
# A tick that should be shorter hears one window, and nothing else.
SEVERAL_WINDOWS_S = 0.5

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _New:
    """A window that is about to be heard: mel [frames of a window, M]."""

    task: SpeechTask
    hearing: Hearing
    mel: mx.array


class SpeechPlan:
    """A tick.

    Args:
        burst_s: how long it should take, because other processes share the device; None: as long as is best.

    Attributes:
        concerned: keys of the requests whose windows are computed just now.
        is_short: one pass of the encoder, or of the decoder, is all.
        listen_s: how long it may listen.
    """

    def __init__(self, burst_s: float | None = None) -> None:
        self.is_short = burst_s is not None and burst_s < SEVERAL_WINDOWS_S
        self.listen_s = LISTEN_S if burst_s is None else min(LISTEN_S, burst_s)
        self.concerned: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """See `Plan.keys`."""
        return self.concerned


class SpeechWorkload:
    """Transcribes with one model.

    Args:
        load_model: reads the model on the thread that calls it, reporting progress.
        make_transcriber: of a request.
        bounds: how much it takes on at once.
        clock: monotonic seconds, the engine's.
    """

    def __init__(
        self,
        load_model: Callable[[Callable[[LoadProgress], None]], LoadedSpeech],
        make_transcriber: Callable[[SpeechRequest, LoadedSpeech, Callable[[], float]], Transcriber],
        bounds: SpeechBounds,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load_model = load_model
        self._make_transcriber = make_transcriber
        self._bounds = bounds
        self._max_rows = bounds.max_rows
        self._clock = clock
        self._loaded: LoadedSpeech | None = None
        self._tasks: dict[str, SpeechTask] = {}
        self._turns = Turns()
        self._stats = SpeechStats()
        self._num_ticks = 0
        self._has_more = True  # whether the next tick may have something to do although nobody wakes the engine

    @property
    def max_rows(self) -> int:
        """How many texts may be written at once; final once loaded."""
        return self._max_rows

    @property
    def max_jobs(self) -> int:
        """How many requests may run and wait at once."""
        return self._bounds.max_rows + self._bounds.max_queue_requests

    def load(self, report: Callable[[object], None]) -> LoadedSpeech:
        """Read the model."""
        self._loaded = self._load_model(report)
        self._max_rows = self._bounds.fitting(self._loaded.row_bytes)
        kernels.take_failure()  # of whatever was computed before is none of ours
        return self._loaded

    def admit(self, job: Job[SpeechRequest]) -> None:
        """Take a request in."""
        transcriber = self._make_transcriber(job.request, self._ready, self._clock)
        task = SpeechTask(job, transcriber, PhaseClock(job.submitted))
        self._tasks[task.key] = task
        self._turns.join(task)

    def claim(self) -> Claim:
        """Say whether somebody listens while it is spoken; windows of files are short work too."""
        is_live = any(task.is_listened_to for task in self._tasks.values())
        return Claim.LIVE if is_live else Claim.STEADY

    def plan(self, burst_s: float | None = None) -> SpeechPlan | None:
        """Return another tick, unless the last found nothing to do and nobody has woken the engine since."""
        has_more, self._has_more = self._has_more, True
        if self._tasks and has_more:
            return SpeechPlan(burst_s)
        if not self._tasks:
            mx.clear_cache()
        return None

    def run(self, plan: SpeechPlan, reporter: Reporter[SpeechRequest]) -> None:
        """Do one tick."""
        self._num_ticks += 1
        self._has_more = self._listen(plan.listen_s, reporter)
        try:
            chosen = self._chosen(1 if plan.is_short else self._bounds.max_new_windows, reporter)
            self._hear(chosen, plan, reporter)
            if chosen and plan.is_short:
                self._has_more = True  # the step is another tick's: a pass of the encoder is a burst
            else:
                self._step(plan, reporter)
        finally:
            self._stats.step_tokens = 0
        for task in list(self._tasks.values()):
            self._end_windows(task, reporter)
            self._tell(task, reporter)

    def drop(self, key: str) -> Usage:
        """Forget a request and its windows; nothing where it is forgotten already."""
        task = self._tasks.pop(key, None)
        if task is None:
            return Usage()
        task.windows.clear()
        usage = task.usage
        self._stats.audio_s_total += usage.audio_s
        return usage

    def view(self, job: Job[SpeechRequest]) -> RequestView:
        """Describe a request."""
        request = job.request
        if (task := self._tasks.get(request.key)) is not None:
            return task.view()
        return RequestView(request.key, request.request_id, "queued", job.submitted, Usage())

    def counts(self) -> Counts:
        """Count requests, tokens and times."""
        tasks = list(self._tasks.values())
        running = sum(task.has_started for task in tasks)
        loaded, num_windows = self._loaded, [len(task.windows) for task in tasks]
        num_texts = sum(count * task.num_texts for count, task in zip(num_windows, tasks, strict=True))
        cache_bytes = 0 if loaded is None else loaded.cache_bytes(sum(num_windows), num_texts)
        return self._stats.counts(running, len(tasks) - running, cache_bytes)

    def recover(self) -> None:
        """Give memory back that a failed tick left in MLX's pool."""
        mx.clear_cache()

    def close(self) -> None:
        """Free the model, its windows and MLX's pool."""
        self._tasks.clear()
        self._loaded = None
        mx.clear_cache()

    @property
    def _ready(self) -> LoadedSpeech:
        if self._loaded is None:
            raise NotLoadedError("the model is not loaded")
        return self._loaded

    def _listen(self, seconds: float, reporter: Reporter[SpeechRequest]) -> bool:
        """Let requests listen to what came, those first that have waited for it; return whether there is more."""
        end = self._clock() + seconds
        has_more = False
        waiting = [task for task in self._tasks.values() if not task.is_paused]
        for task in sorted(waiting, key=lambda each: (not each.is_listened_to, each.last_listened)):
            if self._clock() >= end:
                return True
            task.last_listened = self._num_ticks
            has_more |= bool(self._guarded(task, task.transcriber.listen, reporter))
        return has_more

    def _chosen(self, most: int, reporter: Reporter[SpeechRequest]) -> list[_New]:
        """Return the windows that are heard next, in one pass of the encoder."""
        chosen: list[_New] = []
        while len(chosen) < most:
            found = self._next_window(chosen, reporter)
            if found is None:
                break
            chosen.append(found)
        # A request whose second window could not be made is gone.
        return [each for each in chosen if each.task.key in self._tasks]

    def _next_window(self, chosen: Sequence[_New], reporter: Reporter[SpeechRequest]) -> _New | None:
        """Return a window to be heard beside those chosen, of who has the next turn; None where there is none."""
        num_free = self._num_free(chosen)
        waiting = [task for task in self._tasks.values() if self._may_open(task, chosen, num_free)]
        for task in self._turns.order(waiting):
            if num_free - task.num_texts < self._num_kept(task, chosen):
                if self._guarded(task, task.transcriber.has_next, reporter):
                    return None  # nobody who needs less goes before it, or it might wait for ever
                continue
            hearing = self._guarded(task, task.transcriber.next, reporter)
            if hearing is None:
                continue
            self._turns.take(task, hearing.urgency)
            return _New(task, hearing, pad_frames(hearing.mel, self._ready.config.num_frames))
        return None

    def _num_free(self, chosen: Sequence[_New]) -> int:
        """Return how many more texts may be written."""
        num_open = sum(len(task.windows) * task.num_texts for task in self._tasks.values())
        return self._max_rows - num_open - sum(each.task.num_texts for each in chosen)

    def _may_open(self, task: SpeechTask, chosen: Sequence[_New], num_free: int) -> bool:
        """Tell whether a request may have another window beside those chosen: what is urgent waits for no other."""
        urgency = task.urgency
        if task.is_paused or any(each.hearing.urgency is not urgency for each in chosen):
            return False
        return num_free > self._num_kept(task, chosen) and not self._is_held_back(urgency)

    def _num_kept(self, task: SpeechTask, chosen: Sequence[_New]) -> int:
        """Return how many rows are not for this request: one is for ends of utterances, a window's for who has none."""
        if task.urgency.is_final:
            return 0
        has_window = bool(task.windows) or any(each.task is task for each in chosen)
        is_live = any(each.is_listened_to for each in self._tasks.values())
        return min(has_window * task.num_texts + is_live, self._max_rows - task.num_texts)

    def _is_held_back(self, urgency: Urgency) -> bool:
        """Whether a window would come between the words of a final text, each pass of the encoder being long."""
        if urgency.is_final or (urgency is Urgency.PATIENT and self._turns.is_patient_due):
            return False
        return any(window.goes_first for task in self._tasks.values() for window in task.windows)

    def _hear(self, chosen: Sequence[_New], plan: SpeechPlan, reporter: Reporter[SpeechRequest]) -> None:
        """Hear new windows, and find the language of those whose is not known."""
        if not chosen:
            return
        plan.concerned = tuple(each.task.key for each in chosen)
        for each in chosen:
            self._start(each.task, reporter)
        reporter.flush()
        self._stats.step_tokens = len(chosen) * self._ready.config.n_audio_ctx
        memories = self._ready.session.hear([each.mel for each in chosen])
        probabilities = self._languages([each.hearing for each in chosen], memories)
        _check_kernels()
        for each, memory, found in zip(chosen, memories, probabilities, strict=True):
            self._guarded(each.task, partial(_open, each, memory, found), reporter)

    def _languages(self, hearings: Sequence[Hearing], memories: Sequence[Memory]) -> list[dict[str, float] | None]:
        speech = self._ready
        wanted = [place for place, hearing in enumerate(hearings) if hearing.languages is not None]
        found: list[dict[str, float] | None] = [None] * len(hearings)
        logits = speech.session.language_logits([memories[place] for place in wanted], speech.tokenizer.start)
        for place, row in zip(wanted, logits, strict=True):
            found[place] = language_probabilities(row, speech.tokenizer, hearings[place].languages)
        return found

    def _start(self, task: SpeechTask, reporter: Reporter[SpeechRequest]) -> None:
        """Tell the reader of a request that its first window is being heard."""
        if task.clock.started is None:
            self._stats.note_start(task.clock, self._clock())
            reporter.post(task.job, Started(0, 0))

    def _step(self, plan: SpeechPlan, reporter: Reporter[SpeechRequest]) -> None:
        """Take every open window one token further."""
        for task in self._tasks.values():
            wanted = [window for window in task.windows if window.hearing.is_wanted]
            self._has_more |= len(wanted) < len(task.windows)  # its place is free for another
            task.windows = wanted
        opened = [(task, window) for task in self._tasks.values() for window in task.windows]
        if not opened:
            return
        self._has_more = True
        plan.concerned = tuple({task.key: None for task, _ in opened})
        began = self._clock()
        feeds = [window.feed() for _, window in opened]
        self._stats.step_tokens = sum(len(tokens) for feed in feeds for tokens in feed.tokens)
        logits = self._ready.session.step(feeds)
        _check_kernels()
        now, num_tokens = self._clock(), 0
        for (task, window), found in zip(opened, logits, strict=True):
            if task.key in self._tasks:
                written = self._guarded(task, partial(window.advance, found), reporter) or 0
                task.note_tokens(written, now)
                num_tokens += written
        self._stats.note_tokens(num_tokens, now - began)

    def _end_windows(self, task: SpeechTask, reporter: Reporter[SpeechRequest]) -> None:
        """Hand over the texts that are found."""
        done = [window for window in task.windows if window.is_done]
        task.windows = [window for window in task.windows if not window.is_done]
        for window in done:
            if task.key in self._tasks:
                self._guarded(task, partial(window.end, self._ready), reporter)

    def _tell(self, task: SpeechTask, reporter: Reporter[SpeechRequest]) -> None:
        """Tell a request's reader what happened, and that it is complete where it is."""
        if task.key not in self._tasks:
            return
        events = self._guarded(task, task.transcriber.take_events, reporter) or []
        for event in events:
            if isinstance(event, SpeechSegment) and not task.has_segment:
                task.has_segment = True
                self._stats.first_segment.add(self._clock() - task.clock.submitted)
            reporter.post(task.job, event)
        if task.key in self._tasks and task.transcriber.is_complete:
            usage = self.drop(task.key)
            reporter.post(task.job, Completed(usage, task.clock.timing(self._clock())))

    def _guarded(self, task: SpeechTask, act: Callable[[], T], reporter: Reporter[SpeechRequest]) -> T | None:
        """Do something for one request; where that fails, it alone ends."""
        try:
            return act()
        except WorkerError as error:
            self._fail(task, error, reporter)
        except Exception as error:  # noqa: BLE001 (the engine's loop: this request fails, the rest go on)
            self._fail(task, incident_of(error, "request failed"), reporter)
        return None

    def _fail(self, task: SpeechTask, error: WorkerError, reporter: Reporter[SpeechRequest]) -> None:
        reporter.post(task.job, Failed(error, self.drop(task.key)))


def _open(new: _New, memory: Memory, probabilities: Mapping[str, float] | None) -> None:
    """Begin to decode a window that was heard."""
    window = Window(memory, new.hearing.begin(probabilities))
    new.task.windows.append(OpenWindow(new.hearing, new.hearing.mel.shape[0], memory, window))


def _check_kernels() -> None:
    """Raise what made a kernel leave numbers that mean nothing."""
    if (problem := kernels.take_failure()) is not None:
        raise KernelFailedError(problem)
