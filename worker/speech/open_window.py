"""A window on its way from its picture to its text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.whisper.rules import Floats
from models.whisper.session import Feed, Window
from models.whisper.state import Memory
from models.whisper.timing import align
from worker.speech.hearing import Hearing
from worker.speech.loaded import LoadedSpeech

# Tokens of a final text for which others are held back; what is longer, or tried again and again, is no reason.
MAX_FIRST_STEPS = 100


class LogitsNotFiniteError(RuntimeError):
    """Raised when the model computes values for a window that are no numbers."""


@dataclass(slots=True, eq=False)
class OpenWindow:
    """A window that is heard and being decoded.

    Attributes:
        hearing: what the request wants of it.
        num_frames: that are not padding.
        memory: what the decoder sees of it.
        window: its texts.
        num_steps: that it went.
    """

    hearing: Hearing
    num_frames: int
    memory: Memory
    window: Window
    num_steps: int = 0

    @property
    def goes_first(self) -> bool:
        """Whether no less urgent window is to be heard before this is done."""
        return self.hearing.is_wanted and self.hearing.urgency.is_final and self.num_steps < MAX_FIRST_STEPS

    @property
    def is_done(self) -> bool:
        """Whether its text is found."""
        return self.window.decoding.result is not None

    def feed(self) -> Feed:
        """Return what to compute next."""
        return self.window.feed()

    def advance(self, logits: Floats) -> int:
        """Go on by one token; return how many were written, of all its texts.

        Raises:
            LogitsNotFiniteError: of none can be told which is likely.
        """
        if not np.isfinite(logits).all():
            raise LogitsNotFiniteError("the model computes values that are no numbers")
        self.num_steps += 1
        num_texts = len(self.window.decoding.wanted)
        self.window.decoding.advance(logits)
        return num_texts

    def end(self, speech: LoadedSpeech) -> None:
        """Give the request its text, with the words placed that it wants."""
        text = self.window.decoding.result
        if text is None:
            return
        tokens = self.hearing.spoken(text)
        words = None
        if tokens:
            options = self.hearing.options
            model = speech.whisper.model
            words = align(model, speech.tokenizer, self.memory, tokens, options, self.num_frames)
        self.hearing.end(text, words)
