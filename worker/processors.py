"""What changes logits before tokens are drawn: bias, bans and penalties of all rows of a step at once.

Order: logit bias, repetition, presence, frequency. The three penalties look back over the last `penalty_window` tokens
of prompt and output together, or over all of them where it is 0.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Self, TypeAlias

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from worker.sequence import SamplingSettings

FIRST_CAPACITY = 64

Integers: TypeAlias = NDArray[np.int32]
Numbers: TypeAlias = NDArray[np.float32]


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
        self._ids: Integers = np.zeros(FIRST_CAPACITY, dtype=np.int32)
        self._counts: Numbers = np.zeros(FIRST_CAPACITY, dtype=np.float32)
        for token_id in token_ids:
            self.add(token_id)

    @property
    def ids(self) -> Integers:
        """The distinct tokens; int32 [N]."""
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> Numbers:
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
    """Bias, bans and penalties of one sequence.

    Args:
        settings: what the request asked for.
        prompt_ids: the penalties count these too.
        end_ids: what `additions` bans where it is asked to.

    Attributes:
        window: what the penalties count; None where there are none.
        penalties: repetition (1: none), presence and frequency.
    """

    def __init__(
        self, settings: SamplingSettings, prompt_ids: tuple[int, ...], end_ids: frozenset[int] = frozenset()
    ) -> None:
        repetition = settings.repetition_penalty or 1.0
        self.penalties = (repetition, settings.presence_penalty, settings.frequency_penalty)
        self.window: TokenWindow | None = None
        if self.penalties != (1.0, 0.0, 0.0):
            start = -settings.penalty_window if settings.penalty_window else 0
            self.window = TokenWindow(settings.penalty_window, prompt_ids[start:])
        biases = dict(settings.logit_bias)
        self._biases = _columns(biases)
        self._biases_and_bans = _columns(biases | dict.fromkeys(end_ids, -math.inf))

    def add(self, token_id: int) -> None:
        """Take the token that was drawn."""
        if self.window is not None:
            self.window.add(token_id)

    def additions(self, *, is_end_banned: bool) -> tuple[Integers, Numbers]:
        """Return the ids to whose logits something is added, each once, and what; int32 and float32 [N]."""
        return self._biases_and_bans if is_end_banned else self._biases


def process(logits: mx.array, rows: Items[Processors], end_bans: Items[bool]) -> mx.array:
    """Apply bias, bans and penalties of all rows; costs nothing where no row has any.

    Args:
        logits: [M, V], any floating dtype, which the repetition and presence penalties are computed in.
        rows: one for each row.
        end_bans: for each row whether its `end_ids` are banned.

    Returns:
        The changed logits, [M, V] in the same dtype. A row depends on its own `Processors` alone; ids outside the
        vocabulary change nothing.
    """
    width = logits.shape[-1]
    additions = [row.additions(is_end_banned=ban) for row, ban in zip(rows, end_bans, strict=True)]
    counts = [(_NO_IDS, _NO_NUMBERS) if row.window is None else (row.window.ids, row.window.counts) for row in rows]
    added, counted = Elements.of(additions, width), Elements.of(counts, width)
    if added.places.size:
        logits = _change(logits, added.places, lambda before: before + mx.array(added.values))
    if not counted.places.size:
        return logits
    penalties = np.array([row.penalties for row in rows], np.float32)[counted.rows]  # [M, 3] -> [N, 3]
    repetition = mx.array(penalties[:, 0]).astype(logits.dtype)
    presence = mx.array(penalties[:, 1]).astype(logits.dtype)
    frequency = mx.array(penalties[:, 2] * counted.values)

    def punish(before: mx.array) -> mx.array:
        repeated = mx.where(before < 0, before * repetition, before / repetition)
        return repeated - presence - frequency

    return _change(logits, counted.places, punish)


@dataclass(frozen=True, slots=True)
class Elements:
    """Some elements of a [M, V] array, and a number for each.

    Attributes:
        places: row * V + id; int32 [N].
        rows: the row of each; int64 [N].
        values: float32 [N].
    """

    places: Integers
    rows: NDArray[np.int64]
    values: Numbers

    @classmethod
    def of(cls, columns: Items[tuple[Integers, Numbers]], width: int) -> Self:
        """Join the ids and numbers of all rows, but for ids outside the vocabulary, which would lie in another row."""
        rows = np.repeat(np.arange(len(columns)), [len(ids) for ids, _ in columns])
        if not rows.size:
            return cls(_NO_IDS, rows, _NO_NUMBERS)
        ids = np.concatenate([ids for ids, _ in columns])
        values = np.concatenate([values for _, values in columns])
        inside = (ids >= 0) & (ids < width)
        ids, rows, values = ids[inside], rows[inside], values[inside]
        return cls((rows * width + ids).astype(np.int32), rows, values)


_NO_IDS: Integers = np.zeros(0, np.int32)
_NO_NUMBERS: Numbers = np.zeros(0, np.float32)


def _columns(additions: dict[int, float]) -> tuple[Integers, Numbers]:
    return np.array(list(additions), np.int32), np.array(list(additions.values()), np.float32)


def _change(logits: mx.array, places: Integers, change: Callable[[mx.array], mx.array]) -> mx.array:
    flat, index = mx.flatten(logits), mx.array(places)
    return mx.reshape(mx.put_along_axis(flat, index, change(flat[index]), axis=0), logits.shape)
