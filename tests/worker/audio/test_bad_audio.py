"""What people send that is not what it says: only our own failures, soon, and with little memory."""

import asyncio
import itertools
import resource
import sys

import numpy as np
import pytest

from tests.worker.audio.clips import CODECS, left_tone, long_opus, tone, wav, written
from tests.worker.audio.intakes import LIMITS, heard, intake_of
from worker.audio.containers import decode_container
from worker.audio.errors import AudioError, AudioTooLong, AudioUnreadable
from worker.audio.intake import Intake
from worker.audio.limits import AudioLimits, AudioMeter
from worker.audio.pcm import Encoding, PcmFormat

SEED = 20
SECOND = (tone(16_000, 1.0) * 32767).astype("<i2").tobytes()


async def survived(raw: bytes, chunk_bytes: int = 0) -> int | None:
    """Return how many samples are heard, or None where the audio is refused; any other failure, or a hang, is one."""
    try:
        parts = await asyncio.wait_for(heard(raw, chunk_bytes=chunk_bytes), 20)
    except AudioError:
        return None
    return len(parts[0])


async def fed(intake: Intake, raw: bytes) -> None:
    for start in range(0, len(raw), 65_536):
        await intake.feed(raw[start : start + 65_536])
    await intake.finish()


def peak_bytes() -> int:
    """Return the most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@pytest.mark.parametrize("container", CODECS)
async def test_files_that_break_off_anywhere_are_heard_so_far_or_refused(container: str) -> None:
    whole = written(container, left_tone(48_000, 0.5))
    longest = await survived(whole)
    assert longest is not None
    places = np.random.default_rng(SEED).integers(0, len(whole), 12)
    for place in [1, 11, 12, 13, *places, len(whole) - 1]:
        num_samples = await survived(whole[:place], chunk_bytes=4096)
        assert num_samples is None or num_samples <= longest + 1


@pytest.mark.parametrize("container", CODECS)
async def test_spoilt_files_do_no_harm(container: str) -> None:
    draws = np.random.default_rng(SEED)
    whole = written(container, left_tone(48_000, 0.2))
    for reach in [60, 400, len(whole)] * 5:
        raw = bytearray(whole)
        for place in draws.integers(0, min(reach, len(raw)), 8):
            raw[place] = draws.integers(0, 256)
        await survived(bytes(raw))


async def test_the_sweep_would_notice_a_failure_that_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object, **options: object) -> object:
        raise KeyError("a defect")

    monkeypatch.setattr("worker.audio.containers.av.open", broken)
    with pytest.raises(KeyError):
        await survived(wav(SECOND))


@pytest.mark.parametrize("rate_hz", [0, 1, 999, 1_000_000, 0xFFFFFFFF])
async def test_a_wave_that_lies_about_its_rate_is_refused(rate_hz: int) -> None:
    assert await survived(wav(SECOND, rate_hz=rate_hz)) is None


async def test_a_wave_that_says_it_is_slow_is_as_long_as_it_says() -> None:
    assert await survived(wav(SECOND, rate_hz=2000)) == pytest.approx(8 * 16_000, abs=20)
    with pytest.raises(AudioTooLong):
        await heard(wav(SECOND * 20, rate_hz=2000))


@pytest.mark.parametrize(("size", "num_samples"), [(1, 0), (1000, 500), (1 << 20, 16_000), (0xFFFFFFFF, 16_000)])
async def test_a_wave_that_lies_about_its_size_is_heard_as_far_as_it_goes(size: int, num_samples: int) -> None:
    assert (await survived(wav(SECOND, size=size)) or 0) == num_samples


async def test_a_wave_without_a_size_is_heard_to_its_end() -> None:
    assert await survived(wav(SECOND, size=0)) in {None, 16_000}


@pytest.mark.parametrize("num_channels", [0, 9, 255, 65_535])
async def test_a_wave_that_lies_about_its_channels_is_refused(num_channels: int) -> None:
    assert await survived(wav(SECOND, num_channels=num_channels)) is None


@pytest.mark.parametrize("num_channels", range(1, 9))
async def test_a_wave_that_does_not_say_where_its_channels_are_is_heard(num_channels: int) -> None:
    samples = np.arange(1, num_channels + 1, dtype="<i2") * np.full((800, 1), 1000, "<i2")
    apart = await heard(wav(samples.tobytes(), num_channels=num_channels), separates=True)
    assert [part[400] * 32.768 for part in apart] == pytest.approx(range(1, num_channels + 1), abs=0.01)


@pytest.mark.parametrize("bits", [0, 1, 7, 255, 65_535])
async def test_a_wave_that_lies_about_its_bits_does_no_harm(bits: int) -> None:
    await survived(wav(SECOND, bits=bits))


@pytest.mark.parametrize(
    "raw",
    [
        b"hello, this is a letter\n" * 500,
        b"{}",
        b"\xff" * 70_000,
        b"\0" * 70_000,
        b"%PDF-1.7\n" + bytes(9000),
        b"\xff\xfb" * 9000,
    ],
    ids=["text", "json", "ones", "zeros", "pdf", "marks"],
)
async def test_what_is_no_audio_is_refused(raw: bytes) -> None:
    assert await survived(raw) is None


async def test_who_feeds_what_is_no_audio_does_not_wait_for_a_reader_that_is_gone() -> None:
    assert await survived(b"no audio " * (1 << 20)) is None


async def test_random_bytes_are_refused() -> None:
    assert await survived(np.random.default_rng(SEED).bytes(300_000), chunk_bytes=50_000) is None


async def test_a_twentieth_of_a_second_is_heard() -> None:
    for container in ("wav", "flac", "ogg"):
        assert await survived(written(container, left_tone(48_000, 0.05))) == pytest.approx(800, abs=320)
    assert len((await heard(bytes(1600), PcmFormat(Encoding.S16_LE, 16_000, 1)))[0]) == 800


async def test_a_small_file_that_is_hours_long_is_stopped_at_the_bound_with_little_memory() -> None:
    raw = long_opus(2 * 3600)
    assert len(raw) < 4_000_000
    before = peak_bytes()
    async with intake_of(limits=AudioLimits(600, 64 << 20, 1 << 30)) as intake:
        with pytest.raises(AudioTooLong, match="more than 600 seconds"):
            await fed(intake, raw)
        recording = intake.recordings[0]
        assert recording.num_samples <= 600 * 16_000
        assert recording.memory_bytes <= 9 << 20
        assert isinstance(recording.error, AudioTooLong)
    assert peak_bytes() - before < 64 << 20


def many_packets(num_packets: int) -> bytes:
    """Return an MP4 of some kilobytes that says how many packets of equal size it has."""
    raw = bytearray(written("mp4", tone(16_000, 0.5)[None], 16_000))
    number = num_packets.to_bytes(4, "big")
    for box, place, said in (
        (b"stsz", 8, (100).to_bytes(4, "big") + number),
        (b"stts", 12, number),
        (b"stsc", 16, number),
    ):
        start = raw.rindex(box) + place
        raw[start : start + len(said)] = said
    return bytes(raw)


async def test_an_mp4_that_says_it_has_very_many_packets_costs_no_memory() -> None:
    before = peak_bytes()
    assert await survived(many_packets(50_000_000)) is None
    assert peak_bytes() - before < 256 << 20


class Slices:
    """A file that notes how far it was read."""

    def __init__(self, raw: bytes) -> None:
        self._rest = iter([raw[start : start + 1000] for start in range(0, len(raw), 1000)])
        self.num_read = 0

    def read(self, size: int) -> bytes:
        chunk = next(self._rest, b"")
        self.num_read += len(chunk)
        return chunk


def test_no_more_than_the_bound_is_read_of_what_is_too_long() -> None:
    raw = long_opus(1200)
    file = Slices(raw)
    meter = AudioMeter(AudioLimits(2, LIMITS.max_bytes, LIMITS.max_decoded_bytes))
    with pytest.raises(AudioTooLong):
        list(decode_container(file, mixes=True, meter=meter))
    assert file.num_read < len(raw) * 0.9


@pytest.mark.parametrize(("encoding", "num_bytes"), [*itertools.product(Encoding, [1, 2, 3, 5, 7, 31])])
async def test_odd_numbers_of_raw_bytes_lose_half_a_sample_at_most(encoding: Encoding, num_bytes: int) -> None:
    for num_channels in (1, 2, 3, 8):
        pcm = PcmFormat(encoding, 16_000, num_channels)
        assert len((await heard(bytes(num_bytes), pcm, chunk_bytes=2))[0]) == num_bytes // pcm.frame_bytes


async def test_raw_floats_that_are_no_numbers_do_not_spread() -> None:
    raw = np.full(4800, 0.5, "<f4")
    raw[1000:1100], raw[2000], raw[3000] = np.nan, np.inf, -np.inf
    samples = (await heard(raw.tobytes(), PcmFormat(Encoding.F32_LE, 48_000, 1)))[0]
    assert np.isfinite(samples).all()
    assert np.abs(samples).max() < 1.5


async def test_nothing_at_all_is_told_to_be_empty() -> None:
    with pytest.raises(AudioUnreadable, match="the audio is empty"):
        await heard(b"")


def test_messages_hold_nothing_of_the_library_and_no_path() -> None:
    for raw in (b"", b"nonsense" * 100, b"RIFF\xff\xff\xff\xffWAVE"):
        with pytest.raises(AudioUnreadable) as told:
            list(decode_container(Slices(raw), mixes=True, meter=AudioMeter(LIMITS)))
        assert str(told.value) in {"this is no audio of a kind that is read", "there is no audio in it"}
