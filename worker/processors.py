"""What changes the logits of one sequence before its token is drawn: bias and penalties.

Order: logit bias, repetition, presence, frequency. The three penalties look back over the last `penalty_window` tokens
of prompt and output together, or over all of them where it is 0.
"""

from collections import deque
from collections.abc import Iterable

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from worker.sequence import SamplingSettings

FIRST_CAPACITY = 64


class TokenWindow:
    """Distinct tokens of a window and how often each occurs, ready to be copied to the device.

    Args:
        num_tokens: length of the window; 0: it never forgets.
        token_ids: what was seen before.
    """

    def __init__(self, num_tokens: int, token_ids: Iterable[int] = ()) -> None:
        self._num_tokens = num_tokens
        self._recent: deque[int] = deque()
        self._places: dict[int, int] = {}
        self._ids: NDArray[np.int32] = np.zeros(FIRST_CAPACITY, dtype=np.int32)
        self._counts: NDArray[np.float32] = np.zeros(FIRST_CAPACITY, dtype=np.float32)
        for token_id in token_ids:
            self.add(token_id)

    @property
    def ids(self) -> NDArray[np.int32]:
        """The distinct tokens; int32 [N]."""
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> NDArray[np.float32]:
        """How often each of `ids` occurs; float32 [N]."""
        return self._counts[: len(self._places)]

    def add(self, token_id: int) -> None:
        """Take the next token; the oldest leaves when the window is full."""
        if token_id not in self._places:
            self._append(token_id)
        self._counts[self._places[token_id]] += 1
        if self._num_tokens == 0:
            return
        self._recent.append(token_id)
        if len(self._recent) > self._num_tokens:
            self._forget(self._recent.popleft())

    def _append(self, token_id: int) -> None:
        place = len(self._places)
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[place] = token_id
        self._counts[place] = 0
        self._places[token_id] = place

    def _forget(self, token_id: int) -> None:
        place = self._places[token_id]
        self._counts[place] -= 1
        if self._counts[place] > 0:
            return
        del self._places[token_id]
        last = len(self._places)
        if place != last:
            moved = int(self._ids[last])
            self._ids[place], self._counts[place] = moved, self._counts[last]
            self._places[moved] = place


class Processors:
    """Bias and penalties of one sequence.

    Args:
        settings: what the request asked for.
        prompt_ids: the penalties count these too.
    """

    def __init__(self, settings: SamplingSettings, prompt_ids: tuple[int, ...]) -> None:
        self._settings = settings
        self._has_repetition = settings.repetition_penalty not in {0.0, 1.0}
        self._window = None
        if self._has_repetition or settings.presence_penalty or settings.frequency_penalty:
            start = -settings.penalty_window if settings.penalty_window else 0
            self._window = TokenWindow(settings.penalty_window, prompt_ids[start:])
        self._bias_ids = mx.array(list(settings.logit_bias.keys()), dtype=mx.int32)
        self._bias = mx.array(list(settings.logit_bias.values()), dtype=mx.float32)

    def add(self, token_id: int) -> None:
        """Take the token that was drawn."""
        if self._window is not None:
            self._window.add(token_id)

    def apply(self, logits: mx.array) -> mx.array:
        """Return the changed logits; float32 [V] in and out."""
        if self._bias_ids.size:
            biased = logits[self._bias_ids] + self._bias
            logits = mx.put_along_axis(logits, self._bias_ids, biased, axis=0)
        if self._window is None or not len(self._window.ids):
            return logits
        ids = mx.array(self._window.ids)
        seen = logits[ids]  # [V] -> [N]
        if self._has_repetition:
            penalty = self._settings.repetition_penalty
            seen = mx.where(seen < 0, seen * penalty, seen / penalty)
        if self._settings.presence_penalty:
            seen = seen - self._settings.presence_penalty
        if self._settings.frequency_penalty:
            seen = seen - self._settings.frequency_penalty * mx.array(self._window.counts)
        return mx.put_along_axis(logits, ids, seen, axis=0)
