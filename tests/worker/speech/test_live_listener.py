"""Listening to a recording while it comes."""

import numpy as np

from models.silero.detector import SpeechDetector
from models.silero.model import load_silero
from tests.worker.speech.live_stage import RATE_HZ, LoudnessDetector
from worker.audio.pcm import Floats
from worker.audio.recording import Recording
from worker.speech.live_listener import Detector, Listener

HALF_SECOND = RATE_HZ // 2


class Counting:
    """Counts what its detectors were given."""

    def __init__(self) -> None:
        self.num_detectors = 0
        self.num_samples = 0

    def __call__(self) -> Detector:
        self.num_detectors += 1
        return self

    def probabilities(self, samples: Floats) -> Floats:
        self.num_samples += len(samples)
        return LoudnessDetector().probabilities(samples)


def listening(detector: Counting) -> tuple[Recording, Listener]:
    recording = Recording()
    return recording, Listener(recording, detector, HALF_SECOND)


def sound(seconds: float, loudness: float) -> Floats:
    return np.full(round(seconds * RATE_HZ), loudness, np.float32)


def listen_to_all(listener: Listener) -> int:
    count = 0
    while listener.listen():
        count += 1
    return count


def test_only_whole_chunks_are_judged_until_the_audio_is_complete() -> None:
    recording, listener = listening(Counting())
    recording.append(sound(0.5, 0.9))
    listen_to_all(listener)
    assert listener.position == 8000 // 512 * 512
    recording.end()
    listen_to_all(listener)
    assert listener.position == 8000
    assert listener.is_finished
    assert [turn.end for turn in listener.turns.begun] == [8000]


def test_audio_that_comes_at_once_is_judged_a_few_seconds_at_a_time() -> None:
    recording, listener = listening(Counting())
    recording.append(sound(60, 0.1))
    assert 10 <= listen_to_all(listener) <= 20


def test_a_day_of_skipped_silence_is_given_to_no_detector() -> None:
    detector = Counting()
    recording, listener = listening(detector)
    recording.append(sound(1, 0.9))
    recording.skip(86_400 * RATE_HZ)
    recording.append(sound(1, 0.9))
    recording.end()
    listen_to_all(listener)
    assert detector.num_samples < 10 * RATE_HZ
    assert len(listener.turns.begun) == 2
    assert listener.received == 86_402 * RATE_HZ


def test_behind_silence_that_was_skipped_a_detector_begins_anew() -> None:
    detector = Counting()
    recording, listener = listening(detector)
    recording.skip(5 * RATE_HZ)
    recording.append(sound(1, 0.1))
    listen_to_all(listener)
    assert detector.num_detectors == 2


def test_a_finalization_is_where_the_caller_was() -> None:
    recording, listener = listening(Counting())
    recording.append(sound(5, 0.9))
    listener.finalize(2 * RATE_HZ + 77)
    listen_to_all(listener)
    assert listener.turns.begun[0].end == 2 * RATE_HZ + 77
    assert listener.turns.begun[1].start == 2 * RATE_HZ + 77


def test_many_finalizations_are_come_to_in_one_call() -> None:
    recording, listener = listening(Counting())
    recording.append(sound(4, 0.9))
    for place in range(100):
        listener.finalize(RATE_HZ + place * 300)
    assert listener.is_finalizing
    assert listener.listen()
    assert not listener.is_finalizing
    assert listener.position == 4 * RATE_HZ // 512 * 512


def test_noise_and_tones_are_no_speech() -> None:
    silero = load_silero()
    recording = Recording()
    listener = Listener(recording, lambda: SpeechDetector(silero), HALF_SECOND)
    draws, times = np.random.default_rng(0), np.arange(4 * RATE_HZ) / RATE_HZ
    recording.append(draws.normal(0, 0.1, 4 * RATE_HZ).astype(np.float32))
    recording.append((0.3 * np.sin(2 * np.pi * 440 * times)).astype(np.float32))
    recording.append((0.2 * np.sign(np.sin(2 * np.pi * 220 * times))).astype(np.float32))
    recording.end()
    listen_to_all(listener)
    assert listener.turns.begun == []
