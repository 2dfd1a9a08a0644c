"""Speech found in recorded clips, from samples to stretches."""

import numpy as np
import pytest

from models.silero.detector import SpeechDetector
from models.silero.model import load_silero
from tests.models.silero.sounds import sound, spoken
from worker.audio.speech import SpeechRules, SpeechTimeline, Stretch


def stretches_of(samples: np.ndarray) -> tuple[Stretch, ...]:
    detector, timeline = SpeechDetector(load_silero()), SpeechTimeline(SpeechRules())
    timeline.add(detector.probabilities(samples).tolist())
    timeline.add(detector.finish().tolist())
    timeline.finish(len(samples) / 16_000)
    return timeline.stretches


@pytest.mark.parametrize("clip", ["silence", "noise", "chord"])
def test_there_is_no_speech_where_nobody_speaks(clip: str) -> None:
    assert stretches_of(sound(clip)) == ()


def test_two_who_speak_with_a_pause_between_are_found_where_they_are() -> None:
    pause = np.zeros(2 * 16_000, np.float32)
    first = spoken("goforward")
    samples = np.concatenate([pause, first, pause, spoken("austen_0880"), pause])
    found = stretches_of(samples)
    second_s = 4 + len(first) / 16_000
    assert all(stretch.start_s >= 2 and stretch.end_s <= len(samples) / 16_000 - 1.9 for stretch in found)
    assert any(stretch.end_s <= second_s - 1.9 for stretch in found)
    assert any(stretch.start_s >= second_s for stretch in found)
    assert sum(stretch.end_s - stretch.start_s for stretch in found) > 2.5
