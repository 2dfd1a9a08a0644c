"""Engines with threads of their own: whoever leaves, fails or reads slowly, the others say what they say alone."""

import asyncio
import random
import time
from dataclasses import replace
from pathlib import Path

import pytest

from models.checkpoint.checkpoint import open_checkpoint
from models.registry import LoadedModel, load
from models.step import NumericPath
from tests.support.tiny_models import write_llama
from tests.worker.text_engines import LoadModel, TextEngine, drain, running
from tests.worker.text_mixes import Mix, compare
from tests.worker.text_models import PACKED
from worker.errors import (
    CancelledByOperator,
    ConstraintTooComplex,
    DeadlineExceeded,
    SlowReader,
)
from worker.events import Completed, Event, Failed
from worker.outbox import Outbox
from worker.prefixes import PrefixSettings
from worker.sequence import TextRequest
from worker.text_settings import TextSettings
from worker.workloads.text import TextWorkload

NUM_REQUESTS = 40
SLOW_READER_S = 0.2
SETTINGS = TextSettings(4, prefill_chunk_tokens=32, max_queue_requests=500, max_context_tokens=256)
EXPECTED = (CancelledByOperator, ConstraintTooComplex, DeadlineExceeded, SlowReader)


def loader(folder: Path, device: str) -> LoadModel:
    return lambda report: replace(load(open_checkpoint(folder), NumericPath.FAST, report), device=device)


async def visit(engine: TextEngine, wanted: TextRequest, dice: random.Random) -> list[Event]:
    """Send a request and read what it says, or leave it, or read too late."""
    outbox = Outbox(dice.choice([1 << 18, 60]))
    engine.submit(wanted, outbox)
    fate = dice.choice(["read", "read", "cancel", "late"])
    if fate == "cancel":
        await asyncio.sleep(0)  # on the loop, while the engine's thread goes on
        engine.cancel(wanted.key, CancelledByOperator("test"))
    elif fate == "late":
        await asyncio.sleep(dice.choice([0.5, 2]) * SLOW_READER_S)
    return await drain(outbox)


async def serve(load_model: LoadModel, folder: Path, seed: int) -> list[tuple[TextRequest, list[Event]]]:
    """Let requests come, at an engine of their own, and return what each said."""
    dice = random.Random(seed)
    workload = TextWorkload(load_model, replace(SETTINGS, prefixes=PrefixSettings(1 << 20, folder)))
    async with running(workload, slow_reader_s=SLOW_READER_S) as engine:
        mix = Mix(seed, workload._ready.model)
        wanted = [mix.wanted(str(number)) for number in range(NUM_REQUESTS)]
        soon = [dice.choice([None, None, None, time.monotonic() + dice.random() / 5]) for _ in wanted]
        wanted = [replace(each, deadline=deadline) for each, deadline in zip(wanted, soon, strict=True)]
        said = await asyncio.gather(*(visit(engine, each, dice) for each in wanted))
        counts, ready = workload.counts(), workload._ready
        assert (counts.running, counts.queued, counts.used_cache_tokens) == (0, 0, 0)
        assert ready.cache.nbytes == ready.prefixes.nbytes
    return list(zip(wanted, said, strict=True))


def check(seed: int, loaded: LoadedModel, found: list[tuple[TextRequest, list[Event]]]) -> None:
    mix = Mix(seed, loaded)
    for wanted, events in found:
        last = events[-1]
        if isinstance(last, Failed):
            assert isinstance(last.error, EXPECTED), f"seed {seed}: {last.error!r}"
        else:
            assert isinstance(last, Completed)
            compare(events, mix.alone(replace(wanted, deadline=None)))


@pytest.mark.parametrize("devices", [["cpu"], ["metal"], ["cpu", "metal"]], ids=" and ".join)
async def test_engines_of_one_process_and_requests_of_one_engine_leave_each_other_alone(
    tmp_path: Path, devices: list[str]
):
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    write_llama(tmp_path / "model", **PACKED, seed=0)
    found = await asyncio.gather(
        *(
            serve(loader(tmp_path / "model", device), tmp_path / str(place), seed + place)
            for place, device in enumerate(devices)
        )
    )
    loaded = loader(tmp_path / "model", "cpu")(lambda _: None)
    for place, each in enumerate(found):
        check(seed + place, loaded, each)
        assert sum(isinstance(events[-1], Completed) for _, events in each) >= NUM_REQUESTS // 8
