"""Whose window is heard next, as a workload gives out its rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from tests.worker.speech.driving import GREEDY, Driven, Sound, noise, request, segments
from worker.speech.fairness import LAST_PATIENCE, PATIENCE, Urgency
from worker.speech.file import FileTranscriber
from worker.speech.file_hearing import FileHearing
from worker.speech.hearing import Transcriber
from worker.speech.loaded import LoadedSpeech
from worker.speech.request import SpeechRequest
from worker.workloads.speech import LISTEN_S


def test_a_short_clip_does_not_wait_behind_a_long_recording(speech: LoadedSpeech):
    driven = Driven(speech, max_rows=1)
    driven.admit(request(Sound.of(noise(20)), key="long"))
    driven.until(lambda: driven.workload.counts().running == 1)
    driven.admit(request(Sound.of(noise(0.3)), key="short"))
    driven.until(lambda: "short" not in driven.jobs)
    assert "long" in driven.jobs
    assert len(segments(driven.events["long"])) < 10


def test_the_last_place_is_kept_for_who_has_none(speech: LoadedSpeech):
    clips = tuple((start / 2, start / 2 + 0.5) for start in range(16))
    driven = Driven(speech, max_rows=4)
    options = replace(GREEDY, conditions_on_previous=False, clips=clips)
    driven.admit(request(Sound.of(noise(8)), options, key="many"))
    driven.until(lambda: driven.workload.counts().cache_bytes == 3 * speech.row_bytes)
    for _ in range(5):
        driven.tick_once()
        assert driven.workload.counts().cache_bytes <= 3 * speech.row_bytes
    driven.admit(request(Sound.of(noise(0.3)), key="one"))
    driven.tick_once()
    assert driven.workload.counts().running == 2


class Scripted(FileTranscriber):
    """Wants windows as urgent as a script says, one at a time."""

    heard: list[str]
    script: deque[Urgency]
    last: FileHearing | None = None

    @property
    def urgency(self) -> Urgency:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.script[0] if self.script else Urgency.SPEAKING

    def next(self) -> FileHearing | None:
        if not self.script or any(strand.is_open for channel in self._channels for strand in channel.strands):
            return None
        hearing = super().next()
        if hearing is not None:
            hearing.urgency = self.script.popleft()
            self.heard.append(f"{self._request.key}{hearing.urgency.name[0]}")
        return hearing


class Playhouse:
    """Requests whose windows are as urgent as scripts say.

    Attributes:
        heard: key of the request of each window that was heard, and the first letter of its urgency.
    """

    def __init__(self, speech: LoadedSpeech, max_rows: int = 8, max_new_windows: int = 1) -> None:
        self.heard: list[str] = []
        self.scripts: dict[str, deque[Urgency]] = {}
        self.driven = Driven(speech, self._made, max_rows, max_new_windows)

    def admit(self, key: str, script: Iterable[Urgency] = (), num_windows: int = 100) -> None:
        self.scripts[key] = deque(script)
        clips = tuple((place * 0.4, place * 0.4 + 0.4) for place in range(num_windows))
        options = replace(GREEDY, conditions_on_previous=False, clips=clips)
        self.driven.admit(request(Sound.of(noise(num_windows * 0.4)), options, key=key), max_bytes=1 << 24)
        while self.driven.workload._listen(LISTEN_S, self.driven):
            pass

    def until_heard(self, number: int) -> list[str]:
        self.driven.until(lambda: len(self.heard) >= number)
        return self.heard

    def _made(self, wanted: SpeechRequest, loaded: LoadedSpeech, clock: Callable[[], float]) -> Transcriber:
        made = Scripted(wanted, loaded, clock)
        made.heard, made.script = self.heard, self.scripts[wanted.key]
        return made


@pytest.mark.parametrize("urgency", [Urgency.PAUSING, Urgency.OVER])
def test_a_final_is_heard_next_and_nothing_is_heard_until_it_is_written(speech: LoadedSpeech, urgency: Urgency):
    house = Playhouse(speech)
    house.admit("f", [Urgency.PATIENT] * 50)
    for key in "abc":
        house.admit(key, [Urgency.SPEAKING] * 50)
    house.admit("s")
    num_before = len(house.until_heard(5))
    house.scripts["s"].append(urgency)
    house.driven.tick_once()
    assert house.heard[num_before:] == [f"s{urgency.name[0]}"]
    (window,) = house.driven.workload._tasks["s"].windows
    num_steps = 1
    while house.driven.workload._tasks["s"].windows:
        house.driven.tick_once()
        num_steps += 1
    assert (len(house.heard), num_steps) == (num_before + 1, window.num_steps)
    assert num_steps > 3
    house.driven.tick_once()
    assert len(house.heard) == num_before + 2


@pytest.mark.parametrize("finals", ["x", "xy"])
def test_a_final_shares_its_pass_with_finals_alone(speech: LoadedSpeech, finals: str):
    house = Playhouse(speech, max_new_windows=2)
    for key in "abc":
        house.admit(key, [Urgency.SPEAKING] * 5)
    for key in finals:
        house.admit(key, [Urgency.OVER])
    house.driven.tick_once()
    assert house.heard == [f"{key}O" for key in finals]


@pytest.mark.parametrize("max_rows", [2, 4])
def test_the_last_place_is_for_a_final_while_somebody_listens(speech: LoadedSpeech, max_rows: int):
    house = Playhouse(speech, max_rows)
    house.admit("s")
    for place in range(6):
        house.admit(f"f{place}", [Urgency.PATIENT] * 50)
    for _ in range(20):
        house.driven.tick_once()
        assert house.driven.workload.counts().cache_bytes <= (max_rows - 1) * speech.row_bytes
    num_before = len(house.heard)
    house.scripts["s"].append(Urgency.OVER)
    house.driven.tick_once()
    assert house.heard[num_before:] == ["sO"]


@pytest.mark.parametrize(
    ("listening", "patience"), [(Urgency.SPEAKING, PATIENCE), (Urgency.OVER, LAST_PATIENCE)], ids=str
)
def test_a_file_is_heard_although_somebody_always_listens(speech: LoadedSpeech, listening: Urgency, patience: int):
    house = Playhouse(speech)
    house.admit("f", [Urgency.PATIENT] * 50)
    for key in "abcdefg"[:5]:
        if key != "f":
            house.admit(key, [listening] * 50)
    heard = house.until_heard(4 * (patience + 1))
    assert heard.count("fP") >= 3
    gaps = [len(between.split()) for between in " ".join(heard).split("fP")]
    assert max(gaps) <= patience + 1
