"""A model for speech with all that hearing takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from models.whisper.audio import LogMel
from models.whisper.config import Config
from models.whisper.fit import cache_bytes
from models.whisper.loading import LoadedWhisper
from models.whisper.session import Session
from models.whisper.tokenizer import WhisperTokenizer
from worker.speech.voice import Detector


@dataclass(frozen=True, slots=True)
class LoadedSpeech:
    """What requests for speech are heard with; belongs to the engine's thread.

    Attributes:
        whisper: the model itself.
        session: computes its windows.
        log_mel: makes its pictures.
        make_detector: makes what tells how likely it is that somebody speaks, for another recording.
    """

    whisper: LoadedWhisper
    session: Session
    log_mel: LogMel
    make_detector: Callable[[], Detector]

    @property
    def config(self) -> Config:
        """The sizes of the model."""
        return self.whisper.model.config

    @property
    def tokenizer(self) -> WhisperTokenizer:
        """Text to token ids and back."""
        return self.whisper.tokenizer

    @property
    def row_bytes(self) -> int:
        """Bytes of memory that a window takes of which one text is written."""
        return self.cache_bytes(1, 1)

    def cache_bytes(self, num_windows: int, num_texts: int) -> int:
        """Return the bytes of memory that open windows take, and as many texts of them at their longest."""
        return cache_bytes(self.config, self.whisper.dtype.size, num_windows, num_texts)
