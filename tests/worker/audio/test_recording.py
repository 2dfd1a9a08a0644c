"""Samples between a writer and a reader."""

import errno
import os
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from worker.audio.errors import AudioNotStored, AudioUnreadable
from worker.audio.recording import Recording

BLOCK = 16_384


@pytest.fixture
def new_recording() -> Iterator[Callable[..., Recording]]:
    made: list[Recording] = []

    def make(memory_blocks: int = 128) -> Recording:
        made.append(Recording(memory_blocks * BLOCK * 4))
        return made[-1]

    yield make
    for recording in made:
        recording.close()


def samples_of(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


def filled(samples: np.ndarray, recording: Recording, sizes: int) -> Recording:
    for start in range(0, len(samples), sizes):
        recording.append(samples[start : start + sizes])
    return recording


@pytest.mark.parametrize("sizes", [1000, BLOCK, 50_001])
@pytest.mark.parametrize("memory_blocks", [0, 2, 100])
def test_samples_come_back_from_any_place(
    sizes: int, memory_blocks: int, new_recording: Callable[..., Recording]
) -> None:
    samples = samples_of(10 * BLOCK + 77)
    recording = filled(samples, new_recording(memory_blocks), sizes)
    assert recording.num_samples == len(samples)
    for start, stop in [
        (0, len(samples)),
        (BLOCK - 1, BLOCK + 1),
        (5, 5),
        (3 * BLOCK, 9 * BLOCK),
        (10 * BLOCK, 99 * BLOCK),
    ]:
        assert np.array_equal(recording.read(start, stop), samples[start:stop])


def test_memory_is_bounded_and_the_rest_lies_in_a_file_without_a_name(new_recording: Callable[..., Recording]) -> None:
    recording = filled(samples_of(40 * BLOCK), new_recording(4), 3000)
    assert recording.memory_bytes <= 5 * BLOCK * 4
    assert recording.file_bytes >= 35 * BLOCK * 4
    assert recording._file is not None
    assert os.fstat(recording._file.fileno()).st_nlink == 0


def test_reads_beyond_the_end_are_cut(new_recording: Callable[..., Recording]) -> None:
    recording = filled(samples_of(10), new_recording(), 10)
    assert len(recording.read(4, 50)) == 6
    assert len(recording.read(20, 50)) == 0


def test_skipped_silence_takes_no_room(new_recording: Callable[..., Recording]) -> None:
    samples = samples_of(100)
    recording = filled(samples, new_recording(), 100)
    recording.skip(3_600_000 * 16)
    recording.append(samples)
    assert recording.num_samples == 57_600_200
    assert recording.memory_bytes <= 2 * BLOCK * 4
    assert np.array_equal(recording.read(50, 150), np.concatenate([samples[50:], np.zeros(50, np.float32)]))
    assert np.array_equal(recording.read(57_600_100, 57_600_200), samples)


def test_a_live_hour_stays_flat_when_what_is_done_is_forgotten(new_recording: Callable[..., Recording]) -> None:
    recording = new_recording(8)
    minute = samples_of(60 * 16_000)
    for index in range(1, 61):
        recording.append(minute)
        recording.forget(index * len(minute) - 5 * 16_000)
    assert recording.num_samples == 60 * len(minute)
    assert recording.memory_bytes <= 9 * BLOCK * 4
    assert recording.file_bytes <= 60 * BLOCK * 4  # the places of a minute, used again
    assert np.array_equal(recording.read(60 * len(minute) - 80_000, 60 * len(minute)), minute[-80_000:])


def test_what_is_forgotten_is_silence(new_recording: Callable[..., Recording]) -> None:
    recording = filled(samples_of(3 * BLOCK), new_recording(), BLOCK)
    recording.forget(2 * BLOCK)
    assert not recording.read(0, 2 * BLOCK).any()
    assert recording.read(2 * BLOCK, 3 * BLOCK).any()


def test_it_ends_once_and_says_why(new_recording: Callable[..., Recording]) -> None:
    recording = new_recording()
    assert not recording.is_complete
    error = AudioUnreadable("no")
    recording.end(error)
    recording.end()
    recording.append(samples_of(5))
    recording.skip(5)
    assert recording.is_complete
    assert recording.error is error
    assert recording.num_samples == 0


def test_closing_frees_all_and_later_samples_are_dropped(new_recording: Callable[..., Recording]) -> None:
    recording = filled(samples_of(6 * BLOCK), new_recording(2), BLOCK)
    recording.close()
    recording.append(samples_of(5))
    recording.skip(5)
    assert recording.memory_bytes == recording.file_bytes == 0
    assert recording._file is None
    assert recording.num_samples == 6 * BLOCK
    assert not recording.read(0, 10).any()
    recording.close()


def test_a_full_disk_is_told(monkeypatch: pytest.MonkeyPatch, new_recording: Callable[..., Recording]) -> None:
    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(AudioNotStored, match="no room"):
        filled(samples_of(4 * BLOCK), new_recording(1), BLOCK)


def test_one_thread_writes_while_another_reads_and_forgets(new_recording: Callable[..., Recording]) -> None:
    samples = samples_of(60 * BLOCK)
    recording = new_recording(3)
    writer = threading.Thread(target=lambda: (filled(samples, recording, 777), recording.end()))
    writer.start()
    place = 0
    while place < len(samples):
        part = recording.read(place, place + 5000)
        assert np.array_equal(part, samples[place : place + len(part)])
        place += len(part)
        recording.forget(place)
    writer.join(10)
    assert recording.is_complete
