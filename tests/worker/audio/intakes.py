"""An intake with bounds, fed in pieces."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import numpy as np

from worker.audio.intake import Intake
from worker.audio.limits import AudioLimits
from worker.audio.pcm import PcmFormat

LIMITS = AudioLimits(max_s=60, max_bytes=64 << 20, max_decoded_bytes=256 << 20)


def nothing() -> None:
    """Take no notice."""


@asynccontextmanager
async def intake_of(
    pcm: PcmFormat | None = None,
    *,
    separates: bool = False,
    limits: AudioLimits = LIMITS,
    on_change: Callable[[], None] = nothing,
) -> AsyncGenerator[Intake]:
    intake = Intake(pcm, separates=separates, limits=limits, on_change=on_change)
    try:
        yield intake
    finally:
        await asyncio.wait_for(intake.close(), 5)


async def heard(
    raw: bytes,
    pcm: PcmFormat | None = None,
    *,
    chunk_bytes: int = 0,
    separates: bool = False,
    limits: AudioLimits = LIMITS,
) -> list[np.ndarray]:
    """Return what all recordings hold in the end."""
    async with intake_of(pcm, separates=separates, limits=limits) as intake:
        step = chunk_bytes or max(len(raw), 1)
        for start in range(0, len(raw), step):
            await intake.feed(raw[start : start + step])
        await intake.finish()
        return [recording.read(0, recording.num_samples) for recording in intake.recordings]
