"""A recording that is listened to while it comes, against what the whole of it says."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from models.whisper.audio import LogMel
from worker.audio.pcm import Floats
from worker.audio.recording import Recording
from worker.speech.track import Track
from worker.speech.voice import Voice

from .driving import LoudnessDetector, noise, silence

LOG_MEL = LogMel(80)


def recorded(samples: Floats, *, is_complete: bool = True) -> Recording:
    recording = Recording()
    recording.append(samples)
    if is_complete:
        recording.end()
    return recording


def listened(samples: Floats, *, filters: bool = False) -> Track:
    track = Track(recorded(samples), LOG_MEL, Voice(LoudnessDetector) if filters else None)
    while track.can_listen:
        track.listen()
    return track


@pytest.mark.parametrize(("start", "stop"), [(0, 40), (1, 7), (120, 900), (1990, 2005), (2000, 2003)])
def test_a_part_of_a_picture_is_that_of_the_whole(start: int, stop: int):
    samples = noise(20.035) * np.linspace(0.01, 1, round(20.035 * 16_000), dtype=np.float32)
    whole = LOG_MEL(mx.array(samples), 480_000)
    part = listened(samples).picture(start, stop, of_whole=True)
    np.testing.assert_allclose(np.array(part), np.array(whole[start:stop]), atol=1e-5)


def test_the_scale_of_a_part_hangs_on_what_came_before_its_end_only():
    samples = np.concatenate([noise(2) * 1e-4, noise(2)])
    before = LOG_MEL(mx.array(samples[:32_000]))
    track = listened(samples)
    np.testing.assert_allclose(np.array(track.picture(0, 198, of_whole=False)), np.array(before[:198]), atol=1e-5)
    whole = LOG_MEL(mx.array(samples))
    assert np.array(whole[:198]).min() > np.array(before[:198]).min()
    np.testing.assert_allclose(np.array(track.picture(0, 198, of_whole=True)), np.array(whole[:198]), atol=1e-5)


def test_a_part_does_not_hang_on_how_its_samples_came():
    samples = noise(3.3)
    at_once = listened(samples).picture(100, 300, of_whole=False)
    recording = recorded(samples[:1], is_complete=False)
    track = Track(recording, LOG_MEL, None)
    for start in range(1, len(samples), 7001):
        recording.append(samples[start : start + 7001])
        if track.can_listen:
            track.listen()
    recording.end()
    while track.can_listen:
        track.listen()
    np.testing.assert_array_equal(np.array(track.picture(100, 300, of_whole=False)), np.array(at_once))


@pytest.mark.parametrize("num_samples", [1, 159, 160, 400, 800])
def test_what_is_shorter_than_a_window_has_a_picture(num_samples: int):
    track = listened(noise(1)[:num_samples], filters=True)
    assert track.is_heard
    assert track.num_frames == num_samples // 160
    assert track.picture(0, max(1, track.num_frames), of_whole=True).shape == (max(1, track.num_frames), 80)


def test_nothing_is_all_that_is_known_of_nothing():
    track = listened(noise(0), filters=True)
    assert (track.is_heard, track.num_frames, track.speech_s) == (True, 0, 0)


def test_speech_is_found_where_it_is():
    track = listened(np.concatenate([silence(2), noise(1), silence(3), noise(0.5), silence(1)]), filters=True)
    assert track.next_speech(0, 10) == pytest.approx(2, abs=0.1)
    assert track.next_speech(2.5, 10) == 2.5
    assert track.next_speech(3.5, 5.5) is None
    assert track.next_speech(3.5, 10) == pytest.approx(6, abs=0.1)
    assert track.next_speech(7, 10) is None
    assert track.is_speech(2.8, 5)
    assert not track.is_speech(2.95, 5)
    assert not track.is_speech(4.0, 5.0)
    assert track.speech_s == pytest.approx(1.5, abs=0.3)


def test_without_a_filter_everything_that_sounds_counts_as_speech():
    track = listened(np.concatenate([noise(2) * 1e-6, silence(3)]))
    assert track.next_speech(0.5, 1) == 0.5
    assert track.next_speech(0.5, 5) == 0.5
    assert track.next_speech(2, 5) is None
    assert track.is_speech(1, 2)
    assert track.speech_s is None


class Counting(LogMel):
    """Counts the samples of which pictures were made."""

    num_samples = 0

    def __call__(self, samples: mx.array, num_padding: int = 0) -> mx.array:
        self.num_samples += samples.size
        return super().__call__(samples, num_padding)


class CountingDetector(LoudnessDetector):
    """Counts the samples that it and its like were given."""

    num_samples = 0

    def probabilities(self, samples: Floats) -> Floats:
        CountingDetector.num_samples += len(samples)
        return super().probabilities(samples)


@pytest.mark.parametrize("num_before", [0, 1, 511, 512, 16_000])
def test_silence_that_is_skipped_is_neither_pictured_nor_judged(monkeypatch: pytest.MonkeyPatch, num_before: int):
    monkeypatch.setattr(CountingDetector, "num_samples", 0)
    log_mel, recording = Counting(80), Recording()
    track = Track(recording, log_mel, Voice(CountingDetector))
    recording.append(noise(1)[:num_before])
    recording.skip(3600 * 16_000)
    recording.append(noise(2))
    recording.end()
    while track.can_listen:
        track.listen()
    assert CountingDetector.num_samples < 30 * 16_000
    assert log_mel.num_samples < 30 * 16_000
    begins_s = 3600 + num_before / 16_000
    assert track.next_speech(10, 4000) == pytest.approx(begins_s, abs=0.07)
    assert track.speech_s == pytest.approx(2 + (num_before == 16_000), abs=0.2)


def test_what_no_window_needs_is_let_go_of_and_its_neighbourhood_is_not():
    samples = noise(30)
    track = listened(samples)
    before = np.array(track.picture(1500, 1600, of_whole=True))
    track.forget(1500)
    assert track.recording.memory_bytes < samples.nbytes * 0.6
    np.testing.assert_array_equal(np.array(track.picture(1500, 1600, of_whole=True)), before)
