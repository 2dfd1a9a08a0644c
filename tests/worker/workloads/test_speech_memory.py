"""How many texts of windows are written at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest

from models.whisper.config import Config
from tests.worker.speech.driving import GREEDY, Driven, Sound, noise, request, tiny_speech
from worker.speech.bounds import SpeechBounds
from worker.speech.loaded import LoadedSpeech
from worker.speech.options import SpeechOptions
from worker.speech.transcribers import make_transcriber
from worker.workloads.speech import SpeechWorkload


@pytest.mark.parametrize(("room", "expected"), [(5, 5), (0.5, 1), (1000, 8)])
def test_windows_take_no_more_memory_than_they_may(speech: LoadedSpeech, room: float, expected: int):
    bounds = SpeechBounds(max_rows=8, max_bytes=round(room * speech.row_bytes))
    workload = SpeechWorkload(lambda _: speech, make_transcriber, bounds)
    workload.load(lambda _: None)
    assert workload.max_rows == expected
    assert workload.max_jobs == 8 + 64


def test_the_memory_of_a_window_is_told(speech: LoadedSpeech):
    config: Config = speech.config
    memory = speech.session.hear([speech.log_mel(mx.array(noise(0.4)))[: config.num_frames]])[0]
    seen = sum(array.nbytes for pair in memory for array in pair)
    texts = 2 * config.n_text_layer * config.n_text_ctx * config.n_text_state * 4
    assert speech.row_bytes == seen + texts


def num_rows(driven: Driven) -> tuple[int, int]:
    """Return how many texts are written just now, and how many may be of the windows that are open."""
    tasks = driven.workload._tasks.values()
    written = [len(window.window.decoding.wanted) for task in tasks for window in task.windows]
    return sum(written), sum(len(task.windows) * task.num_texts for task in tasks)


@pytest.mark.parametrize(
    "options", [replace(GREEDY, num_beams=3), replace(GREEDY, temperatures=(0.7,), best_of=3)], ids=["beams", "best"]
)
def test_a_window_takes_as_many_rows_as_it_writes_texts(speech: LoadedSpeech, options: SpeechOptions):
    driven = Driven(speech, max_rows=7)
    for key in "abc":
        driven.admit(request(Sound.of(noise(2)), options, key=key))
    driven.admit(request(Sound.of(noise(2)), key="d"))
    most_written = most_open = 0
    while driven.jobs:
        driven.tick_once()
        written, opened = num_rows(driven)
        assert written <= opened <= 7
        most_written, most_open = max(most_written, written), max(most_open, opened)
    assert (most_written, most_open) == (7, 7)


def test_the_memory_of_texts_is_no_more_than_is_told(tmp_path: Path):
    speech = tiny_speech(tmp_path / "long", n_audio_ctx=1500, n_text_ctx=448)
    driven = Driven(speech, max_rows=8)
    options = replace(GREEDY, temperatures=(0.7,), best_of=5)
    driven.admit(request(Sound.of(noise(0.4)), options))
    largest = 0
    while driven.jobs:
        driven.tick_once()
        kept = 0
        for window in (window for task in driven.workload._tasks.values() for window in task.windows):
            kept += sum(array.nbytes for pair in window.memory for array in pair)
            kept += sum(array.nbytes for array in window.window._texts.arrays())
        counted = driven.workload.counts().cache_bytes
        assert kept <= counted <= 5 * speech.row_bytes
        largest = max(largest, kept)
    assert largest > speech.row_bytes


def test_who_needs_all_rows_gets_them_although_others_need_less(speech: LoadedSpeech):
    driven = Driven(speech, max_rows=4)
    for key in "abcdef":
        driven.admit(request(Sound.of(noise(20)), key=key))
    driven.until(lambda: driven.workload.counts().running == 4)
    driven.admit(request(Sound.of(noise(0.4)), replace(GREEDY, num_beams=4), key="wide"))
    driven.until(lambda: "wide" not in driven.jobs)
    assert set(driven.jobs) == set("abcdef")


def test_who_waits_for_audio_keeps_no_rows_from_others(speech: LoadedSpeech):
    driven = Driven(speech, max_rows=4)
    empty = Sound.of(noise(0), is_complete=False)
    driven.admit(request(empty, replace(GREEDY, num_beams=4), key="wide", is_whole=False))
    driven.admit(request(Sound.of(noise(1)), key="a"))
    driven.admit(request(Sound.of(noise(1)), key="b"))
    driven.until(lambda: driven.workload.counts().running == 2)
    assert num_rows(driven)[1] == 2
    driven.until(lambda: set(driven.jobs) == {"wide"})
