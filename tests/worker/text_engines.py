"""Engines over a tiny random Llama, and what their outboxes bring."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

from models.checkpoint.checkpoint import open_checkpoint
from models.registry import LoadedModel, LoadProgress, load
from models.step import NumericPath
from tests.support.tiny_models import write_llama
from worker.engine import Engine
from worker.events import Completed, Event, Failed, SequenceFinished, TextDelta, TokenDetail
from worker.outbox import Outbox
from worker.scheduler import TextPlan
from worker.sequence import SamplingSettings, StoppingSettings, TextRequest
from worker.workloads.text import TextWorkload

WAIT_S = 20.0
TextEngine = Engine[TextRequest, TextPlan]
LoadModel = Callable[[Callable[[LoadProgress], None]], LoadedModel]


def tiny_loader(folder: Path, path: NumericPath = NumericPath.FAST) -> LoadModel:
    """Return what loads a tiny Llama, written into `folder` unless it is there."""
    if not (folder / "config.json").exists():
        write_llama(folder)
    return lambda report: load(open_checkpoint(folder), path, report)


@contextlib.asynccontextmanager
async def running(workload: TextWorkload, **options: float) -> AsyncGenerator[TextEngine]:
    """Start an engine, wait for its load, and stop it at the end."""
    engine: TextEngine = Engine(workload, asyncio.get_running_loop(), **options)  # pyright: ignore[reportArgumentType]
    engine.start()
    try:
        await asyncio.wait_for(engine.load(), WAIT_S)
        yield engine
    finally:
        await engine.stop(0)


def request(
    request_id: str = "r1",
    prompt: str | tuple[int, ...] = "the cat",
    *,
    max_tokens: int = 8,
    sampling: SamplingSettings | None = None,
    stopping: StoppingSettings | None = None,
    **fields: object,
) -> TextRequest:
    """Return a greedy request; every character of `prompt` is a token."""
    ids = tuple(prompt) if not isinstance(prompt, str) else tuple(ord(character) for character in prompt)
    return TextRequest(
        request_id,
        ids,
        sampling or SamplingSettings(temperature=0.0),
        stopping or StoppingSettings(max_tokens=max_tokens),
        **{"key": request_id, **fields},  # pyright: ignore[reportArgumentType]
    )


def submit(engine: TextEngine, wanted: TextRequest, max_bytes: int = 1 << 18) -> Outbox:
    """Submit a request with a fresh outbox."""
    outbox = Outbox(max_bytes)
    engine.submit(wanted, outbox)
    return outbox


async def drain(outbox: Outbox) -> list[Event]:
    """Take all events of a request."""
    events: list[Event] = []
    async with asyncio.timeout(WAIT_S):
        while not events or not isinstance(events[-1], Completed | Failed):
            events.append(await outbox.take())
    return events


def text_of(events: list[Event]) -> str:
    """Join the deltas."""
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def details_of(events: list[Event]) -> list[TokenDetail]:
    """Return the tokens, where the request asked for details."""
    return [token for event in events if isinstance(event, TextDelta) for token in event.tokens]


def tokens_of(events: list[Event]) -> list[int]:
    """Return the ids of the tokens, where the request asked for details."""
    return [token.id for token in details_of(events)]


def finish_of(events: list[Event]) -> SequenceFinished:
    """Return how the sequence ended."""
    return next(event for event in events if isinstance(event, SequenceFinished))


def failure_of(events: list[Event]) -> Exception:
    """Return the error that ended the request."""
    last = events[-1]
    if not isinstance(last, Failed):
        raise TypeError(f"the request did not fail: {last}")
    return last.error


async def generate(engine: TextEngine, wanted: TextRequest) -> list[Event]:
    """Run one request to its end."""
    return await drain(submit(engine, wanted))
