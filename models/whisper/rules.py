"""What the decoder may write next, by the rules that Whisper was trained with. Plain numbers, no MLX.

Source: Radford et al. 2022, arXiv:2212.04356, section 4.5, and OpenAI's `decoding.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from models.whisper.tokenizer import SECONDS_PER_TIME, WhisperTokenizer

Floats = NDArray[np.float32]
_MAX_FIRST_SECONDS = 1.0


class Rules:
    """Rules for the tokens of a transcript that follow its prompt.

    Args:
        tokenizer: whose ids.
        with_times: whether segments start and end with times.
        suppressed: ids that are never written; None: the tokenizer's own.
        suppresses_blank: whether a transcript may not start with a space or end at once.
        max_first_seconds: where the first segment may start at the latest; None: anywhere.
    """

    def __init__(
        self,
        tokenizer: WhisperTokenizer,
        *,
        with_times: bool,
        suppressed: Sequence[int] | None = None,
        suppresses_blank: bool = True,
        max_first_seconds: float | None = _MAX_FIRST_SECONDS,
    ) -> None:
        self._with_times = with_times
        self._end = tokenizer.end
        self._first_time = tokenizer.first_time
        ids = tokenizer.suppressed() if suppressed is None else list(suppressed)
        if with_times:
            ids = [*ids, tokenizer.no_times]
        self._suppressed = np.array(ids, dtype=np.intp)
        self._blank = np.array(tokenizer.blank() if suppresses_blank else [], dtype=np.intp)
        self._max_first = None if max_first_seconds is None else round(max_first_seconds / SECONDS_PER_TIME)

    def apply(self, logits: Floats, written: Sequence[Sequence[int]]) -> None:
        """Set to minus infinity what may not come next.

        Args:
            logits: [B, V], changed.
            written: the tokens of each text after the prompt.
        """
        for row, tokens in zip(logits, written, strict=True):
            row[self._suppressed] = -np.inf
            if not tokens:
                row[self._blank] = -np.inf
            if self._with_times:
                self._apply_times(row, tokens)

    def _apply_times(self, row: Floats, tokens: Sequence[int]) -> None:
        """Times come in pairs but before the end, never run backwards, and a segment takes some."""
        first = self._first_time
        if not tokens:
            row[:first] = -np.inf
            if self._max_first is not None:
                row[first + self._max_first + 1 :] = -np.inf
            return
        after_time = tokens[-1] >= first
        is_pair = after_time and (len(tokens) < 2 or tokens[-2] >= first)
        if is_pair:
            row[first:] = -np.inf
        elif after_time:
            row[: self._end] = -np.inf
        last = next((token for token in reversed(tokens) if token >= first), None)
        if last is not None:
            row[first : last + (0 if after_time and not is_pair else 1)] = -np.inf
        self._prefer_times(row)

    def _prefer_times(self, row: Floats) -> None:
        """Leave only times where they together are likelier than any one token of text."""
        times, texts = row[self._first_time :], row[: self._first_time]
        peak = times.max()
        if peak == -np.inf:
            return
        together = peak + np.log(np.exp(times - peak).sum())
        if together > texts.max():
            texts[:] = -np.inf


def log_probabilities(logits: Floats) -> Floats:
    """Return the logarithms of the probabilities of logits [..., V]."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
