"""A model for speech with all that hearing takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from models.whisper.audio import LogMel
from models.whisper.config import Config
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
    def window_bytes(self) -> int:
        """Bytes of memory that an open window takes: what every layer sees of the speech, and a text of full length."""
        config = self.config
        positions = config.n_audio_ctx + config.n_text_ctx
        return 2 * config.n_text_layer * positions * config.n_text_state * self.whisper.dtype.size
