"""The thread that decodes one container while its bytes come."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from worker.audio.containers import decode_container
from worker.audio.errors import AudioUnreadable
from worker.audio.limits import AudioLimits, AudioMeter
from worker.audio.pcm import Floats
from worker.audio.spool import GrowingFile, Pipe, Spool

HELD_BYTES = 4 << 20
_HEAD_BYTES = 12
_BATCH_SAMPLES = 4000  # packets are 20 ms; a reader is not to be woken for each
# Of files that may have their directory behind the audio: QuickTime and MP4 by their first box, AIFF by its mark.
_BOXES = frozenset({b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot"})
_AIFF = b"FORM"


class ContainerDecoding:
    """Decodes bytes on a thread of its own, which begins with them and ends with the last, a failure or `close`.

    Args:
        mixes: whether the channels become one.
        limits: bounds of what is decoded.
        deliver: takes samples [S, channels] on that thread.
        on_end: called on that thread behind the last samples, with what went wrong.
    """

    def __init__(
        self,
        *,
        mixes: bool,
        limits: AudioLimits,
        deliver: Callable[[Floats], None],
        on_end: Callable[[Exception | None], None],
    ) -> None:
        self._mixes = mixes
        self._limits = limits
        self._deliver = deliver
        self._on_end = on_end
        self._head = b""
        self._spool: Spool | None = None
        self._room = asyncio.Event()
        self._run: asyncio.Future[None] | None = None
        self._is_closed = False

    async def feed(self, chunk: bytes) -> None:
        """Take more bytes, once there is room for them.

        Raises:
            AudioError: what the decoder has found wrong so far.
            AudioNotStored: there is no room on the disk.
        """
        if self._is_closed:
            return
        if self._spool is None:
            self._head += chunk
            if len(self._head) < _HEAD_BYTES:
                return
            self._spool = self._begin()
            chunk, self._head = self._head, b""
        if isinstance(self._spool, GrowingFile):
            await asyncio.to_thread(self._spool.put, chunk)
        else:
            self._spool.put(chunk)
        self._room.clear()
        while self._spool.is_full:
            await self._room.wait()
            self._room.clear()
        if self._run is not None and self._run.done() and not self._is_closed:
            self._run.result()

    async def finish(self) -> None:
        """Say that no more bytes come, and wait until all are decoded.

        Raises:
            AudioError: what is wrong with the audio.
        """
        if self._is_closed:
            return
        if self._spool is None:
            if not self._head:
                raise AudioUnreadable("the audio is empty")
            self._spool = self._begin()
            self._spool.put(self._head)
            self._head = b""
        self._spool.end()
        if self._run is not None:
            await asyncio.shield(self._run)

    async def close(self) -> None:
        """End the thread and free what it held."""
        self._is_closed = True
        if self._spool is not None:
            self._spool.abandon()
        if self._run is not None:
            await asyncio.wait([self._run])
            self._run.exception()  # it is known, or nobody asks any more

    def _begin(self) -> Spool:
        loop = asyncio.get_running_loop()
        spool: Spool
        if self._head[4:8] in _BOXES or self._head[:4] == _AIFF:
            spool = GrowingFile()
        else:
            spool = Pipe(HELD_BYTES, lambda: _call(loop, self._room.set))
        executor = ThreadPoolExecutor(1, thread_name_prefix="audio")
        self._run = loop.run_in_executor(executor, self._decode, spool)
        executor.shutdown(wait=False)
        return spool

    def _decode(self, spool: Spool) -> None:
        try:
            for samples in _batches(self._samples(spool), spool):
                if spool.is_abandoned:
                    break
                self._deliver(samples)
        except Exception as error:
            self._on_end(error)
            raise
        else:
            self._on_end(None)
        finally:
            spool.abandon()

    def _samples(self, spool: Spool) -> Iterator[Floats]:
        num_heard = 0
        try:
            for samples in decode_container(spool, mixes=self._mixes, meter=AudioMeter(self._limits)):
                num_heard += len(samples)
                yield samples
        except AudioUnreadable:
            if not isinstance(spool, GrowingFile):
                raise
        else:
            return
        # Once more in the order that the file asks for, and past what was heard already.
        for samples in decode_container(spool.whole(), mixes=self._mixes, meter=AudioMeter(self._limits)):
            yield samples[num_heard:]
            num_heard = max(num_heard - len(samples), 0)


def _batches(chunks: Iterator[Floats], spool: Spool) -> Iterator[Floats]:
    """Join what comes, as long as there is more to be had without waiting."""
    held: list[Floats] = []
    for chunk in chunks:
        held.append(chunk)
        if spool.is_drained or sum(map(len, held)) >= _BATCH_SAMPLES:
            yield np.concatenate(held)
            held = []
    if held:
        yield np.concatenate(held)


def _call(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    # A loop that is closed has nobody left who waits.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback)
