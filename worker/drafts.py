"""Guesses the next tokens of a sequence from what it has said before; plain Python.

Where the last few tokens stood earlier in prompt or output, what followed them then is the guess. Wrong guesses cost
time and nothing else, so the guesses grow with success, shrink with failure, and pause after several failures.

Source: Saxena 2023, prompt lookup decoding.
"""

from collections.abc import Iterable

MAX_NGRAM = 3
MIN_NGRAM = 1
FIRST_DRAFT_TOKENS = 3
LONGEST_PAUSE_TOKENS = 64


class Drafter:
    """Guesses for one sequence.

    Args:
        token_ids: what it holds so far.
        max_tokens: longest guess.
    """

    def __init__(self, token_ids: Iterable[int], max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._tokens: list[int] = []
        # Where what followed the latest earlier occurrence of some tokens begins.
        self._continuations: dict[tuple[int, ...], int] = {}
        self._length = min(FIRST_DRAFT_TOKENS, max_tokens)
        self._num_failures = 0
        self._pause_until = 0
        for token_id in token_ids:
            self.add(token_id)

    def add(self, token_id: int) -> None:
        """Take the next token of the sequence."""
        end = len(self._tokens)
        for size in range(MIN_NGRAM, min(MAX_NGRAM, end) + 1):
            self._continuations[tuple(self._tokens[end - size :])] = end
        self._tokens.append(token_id)

    def draft(self, limit: int) -> tuple[int, ...]:
        """Return a guess of at most `limit` tokens; none where nothing is known or guessing does not pay now."""
        length = min(self._length, limit)
        if length < 1 or len(self._tokens) < self._pause_until:
            return ()
        for size in range(min(MAX_NGRAM, len(self._tokens)), MIN_NGRAM - 1, -1):
            start = self._continuations.get(tuple(self._tokens[-size:]))
            if start is not None:
                return self._repeat(start, length)
        return ()

    def judge(self, num_drafted: int, num_accepted: int) -> None:
        """Take how many tokens of a guess were right."""
        if num_accepted == num_drafted:
            self._length = min(2 * self._length, self._max_tokens)
        else:
            self._length = max(1, num_accepted + 1)
        self._num_failures = 0 if num_accepted else self._num_failures + 1
        if self._num_failures:
            pause = min(2**self._num_failures, LONGEST_PAUSE_TOKENS)
            self._pause_until = len(self._tokens) + pause

    def _repeat(self, start: int, length: int) -> tuple[int, ...]:
        """Return what follows from `start` on; a guess that reaches the end goes on with itself."""
        guess: list[int] = []
        for place in range(start, start + length):
            guess.append(self._tokens[place] if place < len(self._tokens) else guess[place - len(self._tokens)])
        return tuple(guess)
