"""The bytes of one request on their way to recordings.

Raw samples are decoded where they are fed, small chunks at once and large ones on a helper's thread; a container has a
thread of its own (`worker.audio.decoding`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from worker.audio.decoding import ContainerDecoding
from worker.audio.errors import AudioError, AudioUnreadable
from worker.audio.limits import AudioLimits, AudioMeter
from worker.audio.pcm import Floats, PcmDecoder, PcmFormat
from worker.audio.recording import Recording

_LIGHT_BYTES = 64 << 10  # decoded within a millisecond


class Intake:
    """Turns the bytes of one request into recordings while they come; used by one task of the event loop at a time.

    Its owner closes it, whatever happens, when nobody reads the recordings any more.

    Args:
        pcm: how samples are written; None: a container, known by its content.
        separates: whether each channel has a recording of its own; else the channels are mixed.
        limits: bounds of the request.
        on_change: called by any thread when recordings have grown, or ended.
    """

    def __init__(
        self, pcm: PcmFormat | None, *, separates: bool, limits: AudioLimits, on_change: Callable[[], None]
    ) -> None:
        self._on_change = on_change
        self._meter = AudioMeter(limits)
        self._recordings: tuple[Recording, ...] = ()
        self._decoder: PcmDecoder | None = None
        self._container: ContainerDecoding | None = None
        self._job: asyncio.Future[None] | None = None
        self._is_closed = False
        if pcm is None:
            self._container = ContainerDecoding(
                mixes=not separates, limits=limits, deliver=self._deliver, on_end=self._end
            )
        else:
            self._decoder = PcmDecoder(pcm, mixes=not separates, meter=self._meter)
            self._recordings = _recordings(self._decoder.num_channels)

    @property
    def recordings(self) -> Sequence[Recording]:
        """A recording, or one for each channel; none before that is known. Each says when it is complete, and why."""
        return self._recordings

    async def feed(self, chunk: bytes) -> None:
        """Take more bytes, once there is room for them.

        Raises:
            AudioError: what is known to be wrong with the audio so far.
        """
        try:
            self._meter.count_bytes(len(chunk))
            if self._container is not None:
                await self._container.feed(chunk)
            else:
                await self._feed_samples(chunk)
        except AudioError as error:
            self._end(error)
            raise

    def skip(self, seconds: float) -> None:
        """Take silence instead of bytes.

        Raises:
            AudioTooLong: there is more than may be.
            AudioUnreadable: it is a container, which keeps its own time.
        """
        if self._decoder is None:
            raise AudioUnreadable("silence can be skipped between raw samples only")
        try:
            self._deliver(self._decoder.flush())
            num_samples = self._decoder.skip(seconds)
        except AudioError as error:
            self._end(error)
            raise
        for recording in self._recordings:
            recording.skip(num_samples)
        self._on_change()

    async def finish(self) -> None:
        """Say that no more bytes come, and wait until all are decoded.

        Raises:
            AudioError: what is wrong with the audio.
        """
        if self._container is not None:
            await self._container.finish()
            return
        if self._decoder is not None:
            self._deliver(self._decoder.flush())
        self._end(None)

    async def close(self) -> None:
        """Give up, or let go of what is there: frees threads and files at any moment, recordings included."""
        self._is_closed = True
        if self._container is not None:
            await self._container.close()
        if self._job is not None:
            await asyncio.wait([self._job])
            self._job.exception()  # `feed` has told it, or nobody asks any more
        self._end(None)
        for recording in self._recordings:
            if recording.file_bytes:
                await asyncio.to_thread(recording.close)  # the disk may take its time
            else:
                recording.close()

    async def _feed_samples(self, chunk: bytes) -> None:
        if len(chunk) <= _LIGHT_BYTES and not self._recordings[0].file_bytes:
            self._decode(chunk)
            return
        # Long work, or a disk that may be slow. `close` waits for it where this task is cancelled.
        self._job = asyncio.get_running_loop().run_in_executor(None, self._decode, chunk)
        await asyncio.shield(self._job)

    def _decode(self, chunk: bytes) -> None:
        for start in range(0, len(chunk), _LIGHT_BYTES):
            if self._decoder is None or self._is_closed:
                return
            self._deliver(self._decoder.decode(chunk[start : start + _LIGHT_BYTES]))

    def _deliver(self, samples: Floats) -> None:
        """Add samples [S, channels] to the recordings."""
        self._recordings = self._recordings or _recordings(samples.shape[1])
        for channel, recording in enumerate(self._recordings):
            recording.append(samples[:, channel])
        self._on_change()

    def _end(self, error: Exception | None) -> None:
        for recording in self._recordings:
            recording.end(error)
        self._on_change()


def _recordings(num_channels: int) -> tuple[Recording, ...]:
    return tuple(Recording() for _ in range(num_channels))
