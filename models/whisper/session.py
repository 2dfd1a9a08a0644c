"""Runs a Whisper model over windows: hears them, and computes the next tokens of as many as there are at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from models.whisper.decoding import Decoding
from models.whisper.model import Part, Whisper
from models.whisper.rules import Floats
from models.whisper.state import Memory, Texts


@dataclass(frozen=True, slots=True)
class Feed:
    """Tokens of one window's texts to compute.

    Attributes:
        texts: what is kept of them.
        tokens: for each text alike many.
        places: where among them logits are needed.
    """

    texts: Texts
    tokens: Sequence[Sequence[int]]
    places: Sequence[int]


class Session:
    """A model as the decoding of windows needs it; on the thread that loaded it.

    Args:
        model: the graph.
        is_reference: compute windows one after the other, in mlx-whisper's exact shapes; else together.
    """

    def __init__(self, model: Whisper, *, is_reference: bool) -> None:
        self.model = model
        self._is_reference = is_reference

    def hear(self, mels: Sequence[mx.array]) -> list[Memory]:
        """Return what the decoder looks at of each window [frames of a window, M]; computed when it returns."""
        memories = [self.model.remember(audio) for audio in self._encoded(mels)]
        mx.eval([array for memory in memories for pair in memory for array in pair])  # pyright: ignore[reportUnknownMemberType]
        return memories

    def step(self, feeds: Sequence[Feed]) -> list[Floats]:
        """Compute tokens of several windows.

        Returns:
            For each feed the logits, float32 [texts, places, V].
        """
        if not feeds:
            return []
        computed = [self._alone(feed) for feed in feeds] if self._is_reference else self._together(feeds)
        logits = [array.astype(mx.float32) for array in computed]
        mx.eval(logits, [feed.texts.arrays() for feed in feeds])  # pyright: ignore[reportUnknownMemberType]
        return [np.array(array, copy=True) for array in logits]

    def language_logits(self, memories: Sequence[Memory], start: int) -> list[Floats]:
        """Return for each window the logits [V] after the start token alone."""
        logits = self.step([Feed(Texts(memory), [[start]], (0,)) for memory in memories])
        return [array[0, 0] for array in logits]

    def _encoded(self, mels: Sequence[mx.array]) -> list[mx.array]:
        """Return each window's audio [1, C, E]."""
        if self._is_reference:
            return [self.model.encode(mel[None]) for mel in mels]
        audio = self.model.encode(mx.stack(list(mels)))
        return [audio[place : place + 1] for place in range(len(mels))]

    def _alone(self, feed: Feed) -> mx.array:
        hidden = self.model.hidden([_part(feed)])[0]
        return self.model.head(hidden)[:, mx.array(list(feed.places))]

    def _together(self, feeds: Sequence[Feed]) -> list[mx.array]:
        hidden = self.model.hidden([_part(feed) for feed in feeds])
        needed = [array[:, mx.array(list(feed.places))] for array, feed in zip(hidden, feeds, strict=True)]
        rows = [mx.flatten(array, 0, 1) for array in needed]
        logits = self.model.head(mx.concatenate(rows) if len(rows) > 1 else rows[0])
        found: list[mx.array] = []
        start = 0
        for array in needed:
            stop = start + array.shape[0] * array.shape[1]
            found.append(mx.unflatten(logits[start:stop], 0, array.shape[:2]))
            start = stop
        return found


class Window:
    """One window on its way to a text.

    Args:
        memory: what was heard.
        decoding: how it is decoded.
    """

    def __init__(self, memory: Memory, decoding: Decoding) -> None:
        self.decoding = decoding
        self._memory = memory
        self._texts = Texts(memory)

    def feed(self) -> Feed:
        """Return what to compute next."""
        decoding = self.decoding
        if decoding.is_fresh:
            self._texts = Texts(self._memory)
        else:
            self._texts.keep(decoding.parents)
        return Feed(self._texts, decoding.wanted, decoding.wanted_logits)


def advance(session: Session, windows: Sequence[Window]) -> None:
    """Take every window that has no text yet one token further."""
    open_windows = [window for window in windows if window.decoding.result is None]
    logits = session.step([window.feed() for window in open_windows])
    for window, found in zip(open_windows, logits, strict=True):
        window.decoding.advance(found)


def _part(feed: Feed) -> Part:
    return Part(mx.array([list(tokens) for tokens in feed.tokens], dtype=mx.int32), feed.texts)
