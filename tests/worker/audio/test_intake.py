"""Bytes of a request on their way to recordings."""

import asyncio
import errno
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.worker.audio.clips import CODECS, directory_first, halves_swapped, left_tone, long_opus, tone, written
from tests.worker.audio.intakes import heard, intake_of
from worker.audio.decoding import HELD_BYTES
from worker.audio.errors import AudioError, AudioNotStored, AudioTooLarge, AudioTooLong, AudioUnreadable
from worker.audio.intake import Intake
from worker.audio.limits import AudioLimits
from worker.audio.pcm import Encoding, PcmFormat

PCM = PcmFormat(Encoding.S16_LE, 16_000, 1)
STEREO = PcmFormat(Encoding.S16_LE, 16_000, 2)


def mp4(kind: str, seconds: float) -> bytes:
    sound = left_tone(48_000, seconds)
    if kind == "in fragments":
        return written("mp4", sound, movflags="+frag_keyframe+empty_moov", frag_duration="200000")
    return directory_first(written("mp4", sound)) if kind == "in front" else written("mp4", sound)


class Changes:
    """Hears of changes, and waits for them."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()

    def __call__(self) -> None:
        self._loop.call_soon_threadsafe(self._changed.set)

    async def heard(self, intake: Intake, num_samples: int) -> None:
        while not intake.recordings or intake.recordings[0].num_samples < num_samples:
            await asyncio.wait_for(self._changed.wait(), 5)
            self._changed.clear()


def num_threads() -> int:
    return sum(thread.name.startswith("audio") for thread in threading.enumerate())


def num_files() -> int:
    return len(list(Path("/dev/fd").iterdir()))


async def threads_gone() -> None:
    """Wait for threads whose work is done; bounded by the test's time."""
    for thread in threading.enumerate():
        if thread.name.startswith("audio"):
            await asyncio.to_thread(thread.join, 5)
    assert num_threads() == 0


async def test_raw_samples_are_heard_as_they_come() -> None:
    async with intake_of(PCM) as intake:
        await intake.feed(np.arange(100, dtype="<i2").tobytes()[:-1])
        assert intake.recordings[0].num_samples == 99
        assert not intake.recordings[0].is_complete
        await intake.finish()
        assert intake.recordings[0].is_complete
        assert intake.recordings[0].read(0, 3).tolist() == [0, 1 / 32768, 2 / 32768]


async def test_raw_channels_have_recordings_of_their_own_on_request() -> None:
    raw = np.array([[100, -300], [200, 500]], "<i2").tobytes()
    apart = await heard(raw, STEREO, separates=True)
    assert [(part * 32768).tolist() for part in apart] == [[100, 200], [-300, 500]]
    mixed = await heard(raw, STEREO)
    assert [(part * 32768).tolist() for part in mixed] == [[-100, 350]]


@pytest.mark.parametrize("num_channels", [1, 2, 8])
async def test_channels_of_containers_have_recordings_of_their_own_on_request(num_channels: int) -> None:
    volumes = np.arange(1, num_channels + 1)[:, None] / 10
    raw = written("flac", (volumes * tone(16_000, 0.2)).astype(np.float32), 16_000)
    apart = await heard(raw, separates=True)
    assert np.allclose([np.abs(part).max() for part in apart], volumes[:, 0] / 2, atol=1e-3)
    assert len(await heard(raw)) == 1


async def test_large_chunks_are_decoded_on_the_side_and_heard_alike() -> None:
    raw = np.random.default_rng(0).integers(-9999, 9999, 400_000).astype("<i2").tobytes()
    assert np.array_equal(await heard(raw, PCM), await heard(raw, PCM, chunk_bytes=10_001))


@pytest.mark.parametrize("container", CODECS)
async def test_chunks_of_one_byte_equal_one_chunk(container: str) -> None:
    raw = written(container, left_tone(16_000, 0.15), 16_000)
    whole = await heard(raw)
    assert len(whole[0]) > 2000
    assert np.array_equal(await heard(raw, chunk_bytes=1), whole)
    assert np.array_equal(await heard(raw, chunk_bytes=997), whole)


@pytest.mark.parametrize("kind", ["in front", "in fragments"])
async def test_an_mp4_is_heard_wherever_its_directory_is(kind: str) -> None:
    parts = await heard(mp4(kind, 2.0), chunk_bytes=1000)
    assert np.array_equal(parts, await heard(mp4("behind", 2.0)))


async def test_an_mp4_whose_samples_lie_out_of_order_is_heard_once_all_is_there() -> None:
    raw = written("mp4", left_tone(48_000, 5.0))
    swapped = halves_swapped(raw)
    changed = Changes()
    async with intake_of(on_change=changed) as intake:
        await intake.feed(swapped[:-1])
        await changed.heard(intake, 2 * 16_000)  # the first half, while the last byte is missing
        await intake.feed(swapped[-1:])
        await intake.finish()
        samples = intake.recordings[0].read(0, 99_999)
    assert np.array_equal([samples], await heard(raw))


@pytest.mark.parametrize("kind", ["wav", "flac", "mp3", "adts", "webm", "ogg", "in front", "in fragments"])
async def test_what_has_come_is_heard_before_the_rest_comes(kind: str) -> None:
    raw = mp4(kind, 10.0) if kind.startswith("in ") else written(kind, left_tone(48_000, 10.0))
    changed = Changes()
    async with intake_of(on_change=changed) as intake:
        await intake.feed(raw[: len(raw) * 6 // 10])
        await changed.heard(intake, 4 * 16_000)
        assert not intake.recordings[0].is_complete


async def test_feeding_waits_for_the_decoder_and_memory_stays_bounded() -> None:
    raw = written("wav", left_tone(48_000, 60.0))
    async with intake_of() as intake:
        await intake.feed(raw)
        assert intake._container is not None
        assert intake._container._spool is not None
        assert intake._container._spool._num_bytes <= HELD_BYTES  # type: ignore[attr-defined]
        assert intake.recordings[0].num_samples > 30 * 16_000


async def test_a_skip_is_silence_and_moves_the_clock() -> None:
    async with intake_of(PcmFormat(Encoding.S16_LE, 8000, 1)) as intake:
        await intake.feed(b"\0\x10" * 800)
        intake.skip(0.5)
        await intake.feed(b"\0\x10" * 800)
        await intake.finish()
        samples = intake.recordings[0].read(0, 99_999)
    assert len(samples) == 0.7 * 16_000
    assert not samples[1600:9600].any()
    assert samples[500:1500].all()
    assert samples[9700:].all()


async def test_a_container_keeps_its_own_time() -> None:
    async with intake_of() as intake:
        with pytest.raises(AudioUnreadable, match="raw samples only"):
            intake.skip(1)


@pytest.mark.parametrize(
    ("limits", "failure"),
    [
        (AudioLimits(0.5, 1 << 30, 1 << 30), AudioTooLong),
        (AudioLimits(60, 1000, 1 << 30), AudioTooLarge),
        (AudioLimits(60, 1 << 30, 30_000), AudioTooLarge),
    ],
)
@pytest.mark.parametrize("pcm", [PCM, None], ids=["raw", "container"])
async def test_bounds_hold_while_decoding(
    pcm: PcmFormat | None, limits: AudioLimits, failure: type[AudioError]
) -> None:
    raw = written("wav", tone(16_000, 1.0)[None], 16_000)
    with pytest.raises(failure):
        await heard(raw, pcm, chunk_bytes=500, limits=limits)


async def test_a_failure_ends_the_recordings_and_is_told_again() -> None:
    async with intake_of(PCM, limits=AudioLimits(0.01, 1 << 20, 1 << 20)) as intake:
        with pytest.raises(AudioTooLong):
            await intake.feed(bytes(1000))
        assert intake.recordings[0].is_complete
        assert isinstance(intake.recordings[0].error, AudioTooLong)
        with pytest.raises(AudioTooLong):
            await intake.feed(bytes(2))


async def test_what_follows_the_end_of_a_container_is_passed_over() -> None:
    raw = written("wav", tone(16_000, 0.5)[None], 16_000)
    assert len((await heard(raw + bytes(6 << 20), chunk_bytes=65_536))[0]) == 8000


async def test_no_samples_are_no_failure_but_no_container_is() -> None:
    assert [len(part) for part in await heard(b"", PCM)] == [0]
    with pytest.raises(AudioUnreadable):
        await heard(b"")


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 1.0])
@pytest.mark.parametrize("container", ["flac", "mp4", "ogg"])
async def test_closing_at_any_moment_ends_the_thread_and_frees_files(container: str, share: float) -> None:
    raw = written(container, left_tone(48_000, 20.0))
    num_open = num_files()
    async with intake_of() as intake:
        feeding = asyncio.create_task(intake.feed(raw[: int(len(raw) * share)]))
        await asyncio.sleep(0)
        feeding.cancel()
        await asyncio.wait_for(intake.close(), 5)
        await asyncio.wait([feeding])
        await intake.feed(raw)
    await threads_gone()
    assert num_files() == num_open


async def test_closing_frees_a_feeder_that_waits() -> None:
    raw = written("ogg", left_tone(48_000, 20.0)) * 200
    async with intake_of(limits=AudioLimits(1e6, 1 << 30, 1 << 40)) as intake:
        feeding = asyncio.create_task(intake.feed(raw))
        await asyncio.sleep(0)
        assert not feeding.done()
        await asyncio.wait_for(intake.close(), 5)
        await asyncio.wait_for(feeding, 5)


async def test_closing_frees_the_one_who_waits_for_the_end() -> None:
    raw = written("ogg", left_tone(48_000, 20.0)) * 20
    async with intake_of(limits=AudioLimits(1e6, 1 << 30, 1 << 40)) as intake:
        await intake.feed(raw)
        finishing = asyncio.create_task(intake.finish())
        await asyncio.sleep(0)
        await asyncio.wait_for(intake.close(), 5)
        await asyncio.wait([finishing], timeout=5)
        assert finishing.done()


@pytest.mark.parametrize("raw", [np.zeros(20 << 18, "<i2").tobytes(), written("mp4", left_tone(16_000, 1.0), 16_000)])
async def test_a_full_disk_is_told(raw: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(AudioNotStored, match="no room"):
        await heard(raw, None if raw[4:8] == b"ftyp" else PCM, limits=AudioLimits(1e6, 1 << 30, 1 << 30))


async def test_sixteen_streams_have_sixteen_threads_and_leave_none() -> None:
    raw = written("flac", left_tone(16_000, 1.0), 16_000)
    all_heard = await asyncio.gather(*(heard(raw, chunk_bytes=300) for _ in range(16)))
    assert {len(parts[0]) for parts in all_heard} == {16_000}
    await threads_gone()


async def test_the_loop_goes_on_while_a_long_file_is_decoded() -> None:
    raw = long_opus(600)
    num_turns = 0
    async with intake_of(limits=AudioLimits(2000, 1 << 30, 1 << 40)) as intake:
        await intake.feed(raw)
        finishing = asyncio.create_task(intake.finish())
        while not finishing.done():
            await asyncio.wait([finishing], timeout=0.001)
            num_turns += 1
        await finishing
    assert num_turns > 20


async def test_a_file_with_nothing_but_a_beginning_is_refused_at_its_end() -> None:
    async with intake_of() as intake:
        await intake.feed(b"RIFF")
        assert num_threads() == 0
        with pytest.raises(AudioUnreadable):
            await intake.finish()
