"""Decoding one window of speech: prompt, search, thresholds, and another try where a text fails them.

A `Decoding` says which tokens it wants to be computed next and is told their logits; who computes them, and for how
many windows at once, is not its business. Plain numbers, no MLX.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from models.whisper.rules import Floats, Rules, log_probabilities
from models.whisper.search import BeamSearch, Sampling, Search, Text, rank
from models.whisper.tokenizer import Task, WhisperTokenizer

TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


@dataclass(frozen=True, slots=True)
class DecodingOptions:
    """How windows are decoded.

    Attributes:
        language: one of the tokenizer's; None in an English-only model.
        task: what the text shall be.
        with_times: whether the text has times.
        temperatures: tried in turn until a text passes the thresholds.
        best_of: texts by chance of which the best is taken, at temperatures above 0.
        num_beams: texts side by side at temperature 0; 1 is greedy.
        patience: see `BeamSearch`.
        length_penalty: see `rank`.
        suppressed: see `Rules`.
        suppresses_blank: see `Rules`.
        max_compression_ratio: a text that can be packed better than so repeats itself; None: any may.
        min_avg_logprob: a text less likely than so for each token fails; None: none does.
        max_no_speech_prob: above, a text that is not likely is silence and not tried again; None: none is.
        seed: of what is by chance.
    """

    language: str | None = None
    task: Task = Task.TRANSCRIBE
    with_times: bool = True
    temperatures: tuple[float, ...] = TEMPERATURES
    best_of: int = 1
    num_beams: int = 1
    patience: float = 1.0
    length_penalty: float | None = None
    suppressed: tuple[int, ...] | None = None
    suppresses_blank: bool = True
    max_compression_ratio: float | None = 2.4
    min_avg_logprob: float | None = -1.0
    max_no_speech_prob: float | None = 0.6
    seed: int = 0


@dataclass(frozen=True, slots=True)
class WindowText:
    """What was said in a window, as far as this try knows.

    Attributes:
        tokens: text and times, without prompt and end.
        text: without times, and without spaces around it.
        avg_logprob: for each token and the end.
        no_speech_prob: that nobody speaks.
        compression_ratio: bytes of the text by bytes that zlib makes of them.
        temperature: of this try.
        is_accepted: whether it passed the thresholds, or is silence; False: no try did, and this is the best.
        alternatives: texts that the search ranked behind, with their `avg_logprob`.
    """

    tokens: tuple[int, ...]
    text: str
    avg_logprob: float
    no_speech_prob: float
    compression_ratio: float
    temperature: float
    is_accepted: bool
    alternatives: tuple[tuple[str, float], ...] = ()

    def is_silence(self, options: DecodingOptions) -> bool:
        """Whether nothing was said: the model thinks so, and its text is not likely."""
        if options.max_no_speech_prob is None or self.no_speech_prob <= options.max_no_speech_prob:
            return False
        return options.min_avg_logprob is None or self.avg_logprob <= options.min_avg_logprob


class Decoding:
    """Tries to decode one window.

    Args:
        tokenizer: whose ids.
        options: how.
        num_positions: of the decoder: half of them are for the prompt, half for the text.
        context: tokens of what was said before, see `context_tokens`.
    """

    def __init__(
        self, tokenizer: WhisperTokenizer, options: DecodingOptions, num_positions: int, context: Sequence[int] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._options = options
        self._rules = Rules(
            tokenizer,
            with_times=options.with_times,
            suppressed=options.suppressed,
            suppresses_blank=options.suppresses_blank,
        )
        room = num_positions // 2
        kept = list(context)[max(0, len(context) - (room - 1)) :]
        before = [tokenizer.previous, *kept] if kept else []
        self._start = len(before)
        self.prompt = [*before, *tokenizer.prompt(options.language, options.task, with_times=options.with_times)]
        self._max_tokens = min(room, num_positions - len(self.prompt))
        self._draws = np.random.default_rng(options.seed)
        self._no_speech_prob = 0.0
        self._tries: list[WindowText] = []
        self._search = self._new_search(options.temperatures[0])
        self._is_first = True
        self.result: WindowText | None = None

    @property
    def is_fresh(self) -> bool:
        """Whether a try begins: what was kept of texts is of no use, and `wanted` is the prompt."""
        return self._is_first

    @property
    def wanted(self) -> list[list[int]]:
        """The tokens to compute next, for each text alike many: the prompt once, or the last of each."""
        return [self.prompt] if self._is_first else [[tokens[-1]] for tokens in self._search.written]

    @property
    def parents(self) -> Sequence[int]:
        """For each row of `wanted`, which row of the last step it goes on from."""
        return self._parents

    @property
    def wanted_logits(self) -> tuple[int, ...]:
        """The places in each row of `wanted` whose logits are needed."""
        return (self._start, len(self.prompt) - 1) if self._is_first else (0,)

    def advance(self, logits: Floats) -> None:
        """Go on by one token, or to the next try.

        Args:
            logits: [rows of `wanted`, places of `wanted_logits`, V]; not changed.
        """
        texts = self._search.written
        if self._is_first:
            probabilities = np.exp(log_probabilities(logits[0, 0]))
            self._no_speech_prob = float(probabilities[self._tokenizer.no_speech])
            rows = np.repeat(logits[:, -1], len(texts), axis=0)
        else:
            rows = logits[:, -1].copy()
        self._rules.apply(rows, texts)
        self._search.choose(rows)
        self._parents = [0] * len(self._search.parents) if self._is_first else self._search.parents
        self._is_first = False
        written = self._search.written
        if not written or len(written[0]) >= self._max_tokens:
            self._end_try()

    def _end_try(self) -> None:
        options = self._options
        temperature = options.temperatures[len(self._tries)]
        found = self._judged(rank(self._search.finish(), options.length_penalty), temperature)
        self._tries.append(found)
        if found.is_accepted or len(self._tries) == len(options.temperatures):
            self.result = found if found.is_accepted else self._best()
            return
        self._search = self._new_search(options.temperatures[len(self._tries)])
        self._is_first = True

    def _judged(self, ranked: Sequence[Text], temperature: float) -> WindowText:
        best, options = ranked[0], self._options
        text, avg_logprob = self._text(best)
        found = WindowText(
            tokens=best.tokens,
            text=text,
            avg_logprob=avg_logprob,
            no_speech_prob=self._no_speech_prob,
            compression_ratio=compression_ratio(text),
            temperature=temperature,
            is_accepted=True,
            alternatives=tuple(self._text(other) for other in ranked[1:]),
        )
        repeats = options.max_compression_ratio is not None and found.compression_ratio > options.max_compression_ratio
        is_unlikely = options.min_avg_logprob is not None and avg_logprob < options.min_avg_logprob
        if (repeats or is_unlikely) and not found.is_silence(options):
            return replace(found, is_accepted=False)
        return found

    def _best(self) -> WindowText:
        """Return the likeliest of the tries, of those that do not repeat themselves if there are any."""
        limit = self._options.max_compression_ratio
        fair = [found for found in self._tries if limit is None or found.compression_ratio <= limit]
        return max(fair or self._tries, key=lambda found: found.avg_logprob)

    def _text(self, text: Text) -> tuple[str, float]:
        return self._tokenizer.decode(text.tokens).strip(), text.sum_logprob / (len(text.tokens) + 1)

    def _new_search(self, temperature: float) -> Search:
        self._parents: Sequence[int] = [0]
        options, end = self._options, self._tokenizer.end
        if temperature == 0 and options.num_beams > 1:
            return BeamSearch(end, options.num_beams, options.patience)
        num_texts = options.best_of if temperature > 0 else 1
        return Sampling(end, num_texts, temperature, self._draws)


def context_tokens(
    tokenizer: WhisperTokenizer, num_positions: int, previous: Sequence[int], phrases: Sequence[str] = ()
) -> list[int]:
    """Return what a window is told of before: phrases to prefer, then the end of what was said, within half of it all.

    Args:
        tokenizer: whose ids.
        num_positions: of the decoder.
        previous: tokens of the text before, times left out or not.
        phrases: names and terms; they take half of the room at most, the first of them first.

    Raises:
        EncodeError: the tokenizer fails on a phrase.
    """
    room = num_positions // 2 - 1
    preferred: list[int] = []
    for phrase in phrases:
        ids = tokenizer.encode(f" {phrase.strip()}" if not preferred else f", {phrase.strip()}")
        if len(preferred) + len(ids) > room // 2:
            break
        preferred += ids
    left = room - len(preferred)
    return [*preferred, *previous[max(0, len(previous) - left) :]]


def language_probabilities(
    logits: Floats, tokenizer: WhisperTokenizer, among: Sequence[str] | None = None
) -> dict[str, float]:
    """Return how likely each language is, likeliest first.

    Args:
        logits: [V], after the start token alone.
        tokenizer: of a multilingual model.
        among: the languages in question; None: all of the model's.
    """
    languages = list(tokenizer.languages if among is None else among)
    ids = [tokenizer.language_id(language) for language in languages]
    probabilities = np.exp(log_probabilities(logits[ids]))
    pairs = zip(languages, probabilities.tolist(), strict=True)
    return dict(sorted(pairs, key=lambda pair: -pair[1]))


def compression_ratio(text: str) -> float:
    """Return how many bytes of a text there are for each that zlib makes of it; 0 for none."""
    raw = text.encode("utf-8", "replace")
    return len(raw) / len(zlib.compress(raw))
