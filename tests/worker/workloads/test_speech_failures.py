"""A request for speech that fails ends, and the rest go on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.worker.speech.driving import Driven, Sound, failure, noise, request
from worker.audio.errors import AudioUnreadable
from worker.errors import AudioUndecodable, InternalError
from worker.events import Completed, SpeechEvent
from worker.speech.file import FileTranscriber
from worker.speech.file_hearing import FileHearing
from worker.speech.hearing import Transcriber
from worker.speech.loaded import LoadedSpeech
from worker.speech.request import SpeechRequest


class Spoilt(FileTranscriber):
    """Fails where a test says."""

    place = "next"

    def listen(self) -> bool:
        self._fail_at("listen")
        return super().listen()

    def next(self) -> FileHearing | None:
        self._fail_at("next")
        hearing = super().next()
        if hearing is not None and self.place in {"begin", "spoken", "end"}:
            setattr(hearing, self.place, lambda *_: self._fail_at(self.place))
        return hearing

    def take_events(self) -> list[SpeechEvent]:
        self._fail_at("take_events")
        return super().take_events()

    def _fail_at(self, place: str) -> None:
        if place == self.place:
            raise RuntimeError("spoilt")


@pytest.mark.parametrize("place", ["listen", "next", "begin", "spoken", "end", "take_events"])
def test_a_request_that_fails_ends_alone(speech: LoadedSpeech, place: str, caplog: pytest.LogCaptureFixture):
    def make(wanted: SpeechRequest, loaded: LoadedSpeech, clock: Callable[[], float]) -> Transcriber:
        transcriber = Spoilt(wanted, loaded, clock) if wanted.key == "bad" else FileTranscriber(wanted, loaded, clock)
        if isinstance(transcriber, Spoilt):
            transcriber.place = place
        return transcriber

    driven = Driven(speech, make)
    driven.admit(request(Sound.of(noise(1)), key="bad"))
    driven.admit(request(Sound.of(noise(1)), key="good"))
    driven.finish()
    assert isinstance(failure(driven.events["bad"]), InternalError)
    assert isinstance(driven.events["good"][-1], Completed)
    assert driven.workload.counts().cache_bytes == 0
    assert "request failed" in caplog.text


def test_numbers_that_are_none_end_the_request_that_they_are_of(speech: LoadedSpeech):
    driven = Driven(speech)
    bad = noise(0.4)
    bad[100] = np.nan
    driven.admit(request(Sound.of(bad), key="bad"))
    driven.admit(request(Sound.of(noise(1)), key="good"))
    driven.finish()
    assert isinstance(failure(driven.events["bad"]), InternalError)
    assert isinstance(driven.events["good"][-1], Completed)


def test_audio_that_breaks_off_ends_the_request_although_windows_are_open(speech: LoadedSpeech):
    driven = Driven(speech)
    sound = Sound.of(noise(3), is_complete=False)
    driven.admit(request(sound, is_whole=False))
    driven.until(lambda: driven.workload.counts().cache_bytes > 0)
    sound.recordings[0].end(AudioUnreadable("spoilt"))
    driven.finish()
    assert isinstance(failure(driven.events["r"]), AudioUndecodable)
