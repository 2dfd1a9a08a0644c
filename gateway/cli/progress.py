"""How far a load is: a bar on a terminal, lines elsewhere, JSON for programs."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pomona.v1 import model_pb2
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from gateway.cli import output

LINE_INTERVAL_S = 2.0
PHASE_WORDS = {
    "starting": "starting a worker",
    "headers": "reading headers",
    "reading": "reading weights",
    "weights": "preparing weights",
    "experts": "reading experts",
    "warm-up": "warming up",
}
# Before a load begins and after it is done there is no progress to tell of.
AT_REST = (model_pb2.MODEL_STATE_UNLOADED, model_pb2.MODEL_STATE_ACTIVE, model_pb2.MODEL_STATE_FAILED)


class Display(Protocol):
    """Shows the states that a model goes through while it loads."""

    def update(self, model: model_pb2.Model) -> None:
        """Show what is new."""
        ...

    def close(self) -> None:
        """Show nothing more."""
        ...


def display(name: str, *, as_json: bool = False) -> Display:
    """Return what shows a load of the model `name` best here."""
    if as_json:
        return JsonLines()
    return Bar(name) if output.console(stderr=True).is_terminal else Lines(name)


@dataclass(frozen=True, slots=True)
class Reading:
    """How far a load is.

    Attributes:
        state: the model's, in words.
        phase: what is done now; empty where the server does not say.
        bytes_done: in this phase.
        bytes_total: of it; 0 where that is not known.
        bytes_per_second: since the phase began; None where nothing can be said yet.
        words: the phase, or why the model waits, or its state, for people.
    """

    state: str
    phase: str
    bytes_done: int
    bytes_total: int
    bytes_per_second: float | None
    words: str

    def line(self) -> str:
        """Return the words with the bytes and their rate."""
        if not (self.bytes_done and self.bytes_total):
            return self.words
        rate = f", {output.bytes_text(round(self.bytes_per_second))}/s" if self.bytes_per_second else ""
        done, total = output.bytes_text(self.bytes_done), output.bytes_text(self.bytes_total)
        return f"{self.words}, {done} of {total}{rate}"


class Meter:
    """Turns what the server says of a model into readings.

    Args:
        now: monotonic time in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self._phase = ""
        self._began = (0.0, 0)

    def read(self, model: model_pb2.Model) -> Reading | None:
        """Return how far the load of `model` is; None where it does not load."""
        if model.state in AT_REST:
            return None
        told, now_s = model.load_progress, self.now()
        if told.phase != self._phase or told.bytes_done < self._began[1]:
            self._phase, self._began = told.phase, (now_s, told.bytes_done)
        spent_s, moved = now_s - self._began[0], told.bytes_done - self._began[1]
        state = output.enum_word(model_pb2.ModelState.Name, model.state, "MODEL_STATE_")
        words = PHASE_WORDS.get(told.phase, told.phase) or model.waiting_for or state
        rate = moved / spent_s if spent_s > 0 and moved else None
        return Reading(state, told.phase, told.bytes_done, told.bytes_total, rate, words)


class Lines:
    """A line on standard error for every new phase, and now and then within one.

    Args:
        name: of the model.
        meter: reads its progress.
    """

    def __init__(self, name: str, meter: Meter | None = None) -> None:
        self._name = name
        self._meter = meter or Meter()
        self._words: str = ""
        self._line: str = ""
        self._told_s = float("-inf")

    def update(self, model: model_pb2.Model) -> None:
        """Print a line where it is time for one."""
        reading = self._meter.read(model)
        if reading is None:
            return
        line, now_s = reading.line(), self._meter.now()
        if line != self._line and (reading.words != self._words or now_s - self._told_s >= LINE_INTERVAL_S):
            self._words, self._line, self._told_s = reading.words, line, now_s
            output.notice(f"{self._name}: {line}")

    def close(self) -> None:
        """End; every line is complete."""


class JsonLines:
    """An object on standard output for everything new: {"progress": {...}}."""

    def __init__(self) -> None:
        self._meter = Meter()
        self._last: tuple[object, ...] = ()

    def update(self, model: model_pb2.Model) -> None:
        """Print what is new."""
        reading = self._meter.read(model)
        if reading is None:
            return
        facts = (reading.state, reading.phase, reading.bytes_done, reading.bytes_total)
        if facts != self._last:
            self._last = facts
            names = ("state", "phase", "bytesDone", "bytesTotal", "bytesPerSecond")
            rate = None if reading.bytes_per_second is None else round(reading.bytes_per_second)
            output.emit({"progress": dict(zip(names, (*facts, rate), strict=True))})

    def close(self) -> None:
        """End; every line is complete."""


class Bar:
    """A bar with phase, bytes and rate on a terminal; it disappears at the end.

    Args:
        name: of the model.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._meter = Meter()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            console=output.console(stderr=True),
            transient=True,
        )
        self._task = self._progress.add_task(f"{name}: waiting", total=None, rate="")
        self._progress.start()

    def update(self, model: model_pb2.Model) -> None:
        """Move the bar."""
        reading = self._meter.read(model)
        if reading is None:
            return
        self._progress.update(
            self._task,
            description=f"{self._name}: {reading.words}",
            total=reading.bytes_total or None,
            completed=reading.bytes_done,
            rate=f"{output.bytes_text(round(reading.bytes_per_second))}/s" if reading.bytes_per_second else "",
        )

    def close(self) -> None:
        """Remove the bar."""
        self._progress.stop()
