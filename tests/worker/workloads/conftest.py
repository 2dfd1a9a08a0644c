"""What tests of workloads share."""

from __future__ import annotations

import pytest

from tests.worker.speech.driving import tiny_speech
from worker.speech.loaded import LoadedSpeech


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> LoadedSpeech:
    """A tiny random Whisper, whose windows are 0.4 seconds."""
    return tiny_speech(tmp_path_factory.mktemp("whisper") / "tiny")
