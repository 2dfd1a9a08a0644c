"""The ticks of the text workload in this process, with and without clocks, and the kernels that they call."""

import statistics
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench import report

CONTEXT_TOKENS = 2048
# What a tick calls, by the line that its time goes to: module, class, method.
PARTS = {
    "choosing rows": (("worker.scheduler", "Scheduler", "plan"),),
    "building the graph, in Python": (("worker.batch", "Batch", "build"),),
    "drawing the token": (("worker.batch", "Batch", "draw"), ("worker.row", "Row", "take")),
    "text: bytes, stops, deltas": (("worker.sequence", "Sequence", "advance"),),
}
FORWARD = "evaluating the forward"
REST = "the rest of a tick"
REPLAYS = 25


@dataclass(frozen=True)
class Load:
    """What is measured: `rows` sequences of `prompt_tokens`, `num_tokens` decoded, `rounds` times."""

    prompt_tokens: int
    num_tokens: int
    rows: int
    rounds: int
    threads: int


@dataclass
class Ticks:
    """What was measured in this process.

    Attributes:
        tick_ms: of a tick as it is served, by round.
        parts_ms: of its parts, by line, in the ticks with clocks.
        kernels_ms: by kernel: calls in one forward, and milliseconds that they add, without MLX's part.
        empty_call_us: MLX's part of a call.
        weight_bytes: that the products of one forward read.
        kv_bytes: of the keys and values that attention read in it.
    """

    tick_ms: dict[str, float | int]
    parts_ms: dict[str, float]
    kernels_ms: dict[str, tuple[int, float]]
    empty_call_us: float
    weight_bytes: int
    kv_bytes: int


def measure_ticks(model: Path, load: Load) -> Ticks:
    """Decode in this process: first as it is served, then with clocks, then only the kernels."""
    from models.checkpoint.checkpoint import open_checkpoint
    from models.registry import load as load_model
    from models.step import NumericPath
    from native import kernels

    kernels.set_threads(load.threads)
    loaded = load_model(open_checkpoint(model), NumericPath.FAST, lambda _: None)
    plain: list[float] = []
    clocked: list[dict[str, float]] = []
    for _ in range(load.rounds):
        plain.append(statistics.median(_ticks(loaded, load)) * 1e3)
        with _clocks() as spent:
            for seconds in _ticks(loaded, load, spent):
                parts = spent.by_tick.pop(0)
                clocked.append({**parts, REST: seconds - sum(parts.values())})
    parts_ms = {name: statistics.median(parts[name] for parts in clocked) * 1e3 for name in (*PARTS, FORWARD, REST)}
    return _with_kernels(loaded, load, report.summary(plain), parts_ms)


def _with_kernels(loaded: Any, load: Load, tick_ms: dict[str, float | int], parts: dict[str, float]) -> Ticks:
    """Note the kernels of one forward and time them again."""
    from bench import kernel_calls
    from models.recorded import RecordedModel

    if isinstance(loaded.model, RecordedModel):
        loaded = replace(loaded, model=loaded.model.graph)  # a recorded forward makes no calls
    decoder = _Decoder(loaded, load)
    decoder.step()
    with kernel_calls.noted() as calls:
        decoder.step()
    empty_s = min(kernel_calls.empty_call_seconds(load.rounds))
    _, added = kernel_calls.seconds_by_kind(calls, REPLAYS)
    kernels_ms = {name: (count, max(0.0, seconds - count * empty_s) * 1e3) for name, (count, seconds) in added.items()}
    return Ticks(
        tick_ms=tick_ms,
        parts_ms=parts,
        kernels_ms=kernels_ms,
        empty_call_us=empty_s * 1e6,
        weight_bytes=sum(call.weight_bytes for call in calls),
        kv_bytes=loaded.token_bytes * load.rows * (load.prompt_tokens + load.num_tokens // 2),
    )


def _ticks(loaded: Any, load: Load, spent: "_Spent | None" = None) -> list[float]:
    """Decode from the start of a prompt on and return the seconds of each tick behind it."""
    decoder = _Decoder(loaded, load)
    decoder.step()
    samples: list[float] = []
    for _ in range(load.num_tokens):
        if spent is not None:
            spent.begin()
        began = time.perf_counter()
        decoder.step()
        samples.append(time.perf_counter() - began)
    return samples


class _Decoder:
    """The text workload with its rows behind their prompts; posted events are dropped."""

    def __init__(self, loaded: Any, load: Load) -> None:
        from worker.job import Job
        from worker.outbox import Outbox
        from worker.sequence import SamplingSettings, StoppingSettings, TextRequest
        from worker.text_settings import TextSettings
        from worker.workloads.text import TextWorkload

        settings = TextSettings(max_batch_rows=load.rows, max_context_tokens=CONTEXT_TOKENS)
        self._workload = TextWorkload(lambda _: loaded, settings)
        self._workload.load(lambda _: None)
        stopping = StoppingSettings(2 * load.num_tokens + 8)
        for row in range(load.rows):
            prompt = tuple((index * 7919 + 13 + row) % 40_000 + 100 for index in range(load.prompt_tokens))
            request = TextRequest(f"bench-{row}", prompt, SamplingSettings(temperature=0.0), stopping)
            self._workload.admit(Job(request, Outbox(1 << 30), 0.0))
        self._silent = silent()
        for _ in range(load.rows * load.prompt_tokens // 512 + 1):
            self.step()

    def step(self) -> None:
        """Do one tick."""
        if (plan := self._workload.plan()) is not None:
            self._workload.run(plan, self._silent)


def silent() -> Any:
    """Return what stands in for an engine, and sends nothing."""
    return _Silent()


class _Silent:
    """Stands in for the engine; nothing is sent, and nothing runs beside."""

    def post(self, job: Any, event: Any) -> None:
        """Drop an event."""

    def flush(self) -> None:
        """Send nothing."""

    def tick(self) -> None:
        """Count nothing."""


@dataclass
class _Spent:
    """Seconds by line, without those of lines within, for each tick since it began."""

    by_tick: list[dict[str, float]] = field(default_factory=list[dict[str, float]])
    _within: list[float] = field(default_factory=list[float])

    def begin(self) -> None:
        """Begin a tick."""
        self.by_tick.append(dict.fromkeys((*PARTS, FORWARD), 0.0))

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function with a clock around it."""

        def timed(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            self._within.append(0.0)
            try:
                return function(*arguments, **named)
            finally:
                took = time.perf_counter() - began
                own = took - self._within.pop()
                if self.by_tick:
                    self.by_tick[-1][name] += own
                if self._within:
                    self._within[-1] += took

        return timed


@contextmanager
def _clocks() -> Generator[_Spent]:
    """Put a clock around each part of a tick for the length of the block."""
    import importlib

    import mlx.core as mx

    spent = _Spent()
    found = [
        (name, getattr(importlib.import_module(module), owner), method)
        for name, places in PARTS.items()
        for module, owner, method in places
    ]
    originals = [(owner, method, getattr(owner, method)) for _, owner, method in found]

    def forward(batch: Any) -> None:
        batch.start()
        mx.synchronize()

    def draw(batch: Any, *arguments: Any) -> None:
        spent.around(FORWARD, forward)(batch)
        timed_draw(batch, *arguments)

    for (name, owner, method), (_, _, original) in zip(found, originals, strict=True):
        setattr(owner, method, spent.around(name, original))
    batch_class = next(owner for _, owner, method in found if method == "draw")
    timed_draw = batch_class.draw
    batch_class.draw = draw
    try:
        yield spent
    finally:
        for owner, method, original in originals:
            setattr(owner, method, original)
