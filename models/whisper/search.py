"""Ways to write a window's text: the likeliest token each time, tokens by chance, or several texts side by side.

A search is told the logits of its texts and says which of them go on, and with what. Plain numbers, no MLX.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from models.whisper.rules import Floats, log_probabilities


@dataclass(frozen=True, slots=True)
class Text:
    """A finished text: its tokens without the end, and the sum of their logarithmic probabilities and the end's."""

    tokens: tuple[int, ...]
    sum_logprob: float


class Search(Protocol):
    """The texts of one window that are being written."""

    @property
    def written(self) -> Sequence[Sequence[int]]:
        """The tokens so far of the texts that go on; empty when all are finished."""
        ...

    @property
    def parents(self) -> Sequence[int]:
        """For each of `written`, which of the texts before the last step it goes on from."""
        ...

    def choose(self, logits: Floats) -> None:
        """Go on by one token.

        Args:
            logits: [len(written), V], what may not come being minus infinity.
        """
        ...

    def finish(self) -> list[Text]:
        """End everything that is not finished, and return all texts."""
        ...


class Sampling:
    """Texts that know nothing of each other.

    Args:
        end: the token that ends a text.
        num_texts: how many.
        temperature: divides the logits; 0 takes the likeliest, the first of equals.
        draws: for temperatures above 0.
    """

    def __init__(
        self, end: int, num_texts: int = 1, temperature: float = 0.0, draws: np.random.Generator | None = None
    ):
        """See the class."""
        self._end = end
        self._temperature = temperature
        self._draws = np.random.default_rng(0) if draws is None else draws
        self._running = [_Running([], 0.0) for _ in range(num_texts)]
        self._finished: list[Text] = []
        self.parents: list[int] = []

    @property
    def written(self) -> list[list[int]]:
        """See `Search.written`."""
        return [text.tokens for text in self._running]

    def choose(self, logits: Floats) -> None:
        """See `Search.choose`."""
        logprobs = log_probabilities(logits)
        tokens = self._next(logits)
        going_on: list[_Running] = []
        self.parents = []
        for place, (text, token) in enumerate(zip(self._running, tokens, strict=True)):
            sum_logprob = text.sum_logprob + float(logprobs[place, token])
            if token == self._end:
                self._finished.append(Text(tuple(text.tokens), sum_logprob))
            else:
                self.parents.append(place)
                going_on.append(_Running([*text.tokens, int(token)], sum_logprob))
        self._running = going_on

    def finish(self) -> list[Text]:
        """See `Search.finish`; a text that did not come to its end counts as it is."""
        return [*self._finished, *(Text(tuple(text.tokens), text.sum_logprob) for text in self._running)]

    def _next(self, logits: Floats) -> NDArray[np.intp]:
        if self._temperature == 0:
            return logits.argmax(axis=-1)
        # The largest of the logits with noise of Gumbel's kind is a draw from their distribution.
        noise = self._draws.gumbel(size=logits.shape)
        return (logits / self._temperature + noise).argmax(axis=-1)


class BeamSearch:
    """The likeliest texts side by side, until enough of them have ended.

    Args:
        end: the token that ends a text.
        num_beams: texts side by side.
        patience: times `num_beams`, rounded, is how many must have ended.

    Source: Sutskever et al. 2014, arXiv:1409.3215; patience: Kasai et al. 2022, arXiv:2204.05424.
    """

    def __init__(self, end: int, num_beams: int, patience: float = 1.0) -> None:
        self._end = end
        self._num_beams = num_beams
        self._num_wanted = max(1, round(num_beams * patience))
        self._running = [_Running([], 0.0)]
        self._finished: list[Text] = []
        self._parents: list[int] = []

    @property
    def parents(self) -> list[int]:
        """See `Search.parents`."""
        return self._parents if self.written else []

    @property
    def written(self) -> list[list[int]]:
        """See `Search.written`."""
        return [] if len(self._finished) >= self._num_wanted else [text.tokens for text in self._running]

    def choose(self, logits: Floats) -> None:
        """See `Search.choose`."""
        going_on: list[_Running] = []
        self._parents = []
        ended: list[Text] = []
        for sum_logprob, place, token in self._candidates(log_probabilities(logits)):
            tokens = self._running[place].tokens
            if token == self._end:
                ended.append(Text(tuple(tokens), sum_logprob))
            else:
                self._parents.append(place)
                going_on.append(_Running([*tokens, token], sum_logprob))
                if len(going_on) == self._num_beams:
                    break
        self._running = going_on
        self._finished += ended[: self._num_wanted - len(self._finished)]

    def finish(self) -> list[Text]:
        """See `Search.finish`; where fewer ended than should have, the likeliest of the others join them."""
        missing = max(0, min(self._num_beams, self._num_wanted) - len(self._finished))
        running = sorted(self._running, key=lambda text: -text.sum_logprob)[:missing]
        return [*self._finished, *(Text(tuple(text.tokens), text.sum_logprob) for text in running)]

    def _candidates(self, logprobs: Floats) -> list[tuple[float, int, int]]:
        """Return sum, text and token of the likeliest continuations, best first, one more of each text than beams."""
        found: list[tuple[float, int, int]] = []
        count = min(self._num_beams + 1, logprobs.shape[1])
        for place, (text, row) in enumerate(zip(self._running, logprobs, strict=True)):
            best = np.argpartition(-row, count - 1)[:count]
            found += [
                (text.sum_logprob + float(row[token]), place, int(token)) for token in best if row[token] > -np.inf
            ]
        return sorted(found, key=lambda candidate: (-candidate[0], candidate[1], candidate[2]))


def rank(texts: Sequence[Text], length_penalty: float | None, num_given: int = 0) -> list[Text]:
    """Return texts by how likely they are for their length, best first.

    Args:
        texts: at least one.
        length_penalty: alpha of ((5 + length) / 6) ** alpha, by which the sum is divided; None: by the length.
        num_given: tokens before each text that belong to it and are certain.

    Source: Wu et al. 2016, arXiv:1609.08144, section 7.
    """

    def score(text: Text) -> float:
        length = num_given + len(text.tokens)
        divisor = length if length_penalty is None else ((5 + length) / 6) ** length_penalty
        return text.sum_logprob / divisor if divisor else -np.inf

    return sorted(texts, key=score, reverse=True)


@dataclass(frozen=True, slots=True)
class _Running:
    tokens: list[int]
    sum_logprob: float
