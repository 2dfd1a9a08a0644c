"""Decoding one window of speech: prompt, search, thresholds, and another try where a text fails them.

A `Decoding` says which tokens it wants to be computed next and is told their logits; who computes them, and for how
many windows at once, is not its business. Plain numbers, no MLX.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from models.whisper.loops import echo_share
from models.whisper.rules import Floats, Rules, log_probabilities
from models.whisper.search import BeamSearch, Sampling, Search, Text, rank
from models.whisper.tokenizer import Task, WhisperTokenizer

TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
# A text of which so much stands in the text before, and that is less likely than this for each token, was not heard but
# copied: what is really said twice is likelier the second time.
_ECHO_SHARE = 0.5
_ECHO_AVG_LOGPROB = -0.5


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
        tokens: text and times, without prompt and end; the prefix is of the text.
        text: without times, and without spaces around it.
        avg_logprob: for each token behind the prefix and the end.
        no_speech_prob: that nobody speaks.
        compression_ratio: bytes of the text by bytes that zlib makes of them.
        temperature: of this try.
        is_accepted: whether it passed the thresholds, or is silence; False: no try did, and this is the best.
        alternatives: texts that the search ranked behind, with their `avg_logprob`.
        is_told: whether it was written knowing of what was said before, where there was something.
    """

    tokens: tuple[int, ...]
    text: str
    avg_logprob: float
    no_speech_prob: float
    compression_ratio: float
    temperature: float
    is_accepted: bool
    alternatives: tuple[tuple[str, float], ...] = ()
    is_told: bool = True

    def is_silence(self, options: DecodingOptions) -> bool:
        """Whether nothing was said: the model thinks so, and its text is not likely."""
        if options.max_no_speech_prob is None or self.no_speech_prob <= options.max_no_speech_prob:
            return False
        return options.min_avg_logprob is None or self.avg_logprob <= options.min_avg_logprob


class Decoding:
    """Tries to decode one window.

    Where there is more than one temperature, a text that fails is tried again without what was said before, if it was
    told of that, and then warmer: a text before it is what leads a model astray most often.

    Args:
        tokenizer: whose ids.
        options: how.
        num_positions: of the decoder: half of them are for the prompt, half for the text.
        context: tokens of what was said before, see `context_tokens`.
        prefix: tokens of text, with times or without, that the window's text begins with; a text with times whose
            prefix starts with none starts at 0.00. Results have it; how likely it is counts nothing.

    Raises:
        ValueError: the prefix leaves no room for a text behind it, or has a token that is neither text nor time.
    """

    def __init__(
        self,
        tokenizer: WhisperTokenizer,
        options: DecodingOptions,
        num_positions: int,
        context: Sequence[int] = (),
        prefix: Sequence[int] = (),
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
        self._context = list(context)[max(0, len(context) - (room - 1)) :]
        asked = tokenizer.prompt(options.language, options.task, with_times=options.with_times)
        self._prefix = _as_written(prefix, tokenizer, with_times=options.with_times)
        num_before = len(self._context) + bool(self._context)
        self._max_tokens = min(room, num_positions - num_before - len(asked)) - len(self._prefix)
        if self._max_tokens < 1:
            raise ValueError(f"a prefix of {len(self._prefix)} tokens leaves no room for a text")
        self._asked = [*asked, *self._prefix]
        self._draws = np.random.default_rng(options.seed)
        self._no_speech_prob = 0.0
        first, *warmer = options.temperatures
        without = [(first, False)] if self._context and warmer else []
        self._plan = [(first, True), *without, *((temperature, False) for temperature in warmer)]
        self._failed: list[tuple[WindowText, bool]] = []  # with whether each is a loop or an echo
        self.result: WindowText | None = None
        self._begin_try()

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
        return (len(self.prompt) - len(self._asked), len(self.prompt) - 1) if self._is_first else (0,)

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
        self._rules.apply(rows, [[*self._prefix, *tokens] for tokens in texts])
        self._search.choose(rows)
        self._parents = [0] * len(self._search.parents) if self._is_first else self._search.parents
        self._is_first = False
        written = self._search.written
        if not written or len(written[0]) >= self._max_tokens:
            self._end_try()

    def _begin_try(self) -> None:
        temperature, is_told = self._plan[len(self._failed)]
        before = [self._tokenizer.previous, *self._context] if is_told and self._context else []
        self.prompt = [*before, *self._asked]
        self._search = self._new_search(temperature)
        self._is_first = True

    def _end_try(self) -> None:
        temperature, is_told = self._plan[len(self._failed)]
        ranked = rank(self._search.finish(), self._options.length_penalty, len(self._prefix))
        text, avg_logprob = self._text(ranked[0])
        found = WindowText(
            tokens=(*self._prefix, *ranked[0].tokens),
            text=text,
            avg_logprob=avg_logprob,
            no_speech_prob=self._no_speech_prob,
            compression_ratio=compression_ratio(text),
            temperature=temperature,
            is_accepted=True,
            alternatives=tuple(self._text(other) for other in ranked[1:]),
            is_told=is_told,
        )
        repeats = self._repeats(found)
        if found.is_silence(self._options) or not (repeats or self._is_unlikely(found)):
            self.result = found
            return
        self._failed.append((replace(found, is_accepted=False), repeats))
        if len(self._failed) == len(self._plan):
            self.result = self._best()
        else:
            self._begin_try()

    def _repeats(self, found: WindowText) -> bool:
        """Whether a text is a loop, or an echo of what was said before."""
        limit = self._options.max_compression_ratio
        if limit is not None and found.compression_ratio > limit:
            return True
        if not found.is_told or self._options.min_avg_logprob is None or found.avg_logprob > _ECHO_AVG_LOGPROB:
            return False
        texts = ([token for token in tokens if token < self._tokenizer.end] for tokens in (found.tokens, self._context))
        return echo_share(*texts) >= _ECHO_SHARE

    def _is_unlikely(self, found: WindowText) -> bool:
        limit = self._options.min_avg_logprob
        return limit is not None and found.avg_logprob < limit

    def _best(self) -> WindowText:
        """Return the likeliest of the tries, of those that do not repeat anything if there are any."""
        fair = [found for found, repeats in self._failed if not repeats]
        return max(fair or [found for found, _ in self._failed], key=lambda found: found.avg_logprob)

    def _text(self, text: Text) -> tuple[str, float]:
        tokens = (*self._prefix, *text.tokens)
        return self._tokenizer.decode(tokens).strip(), text.sum_logprob / (len(text.tokens) + 1)

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


def _as_written(prefix: Sequence[int], tokenizer: WhisperTokenizer, *, with_times: bool) -> list[int]:
    """Return a prefix as a text with times or without them has it."""
    if any(tokenizer.end <= token < tokenizer.first_time or token >= tokenizer.vocab_size for token in prefix):
        raise ValueError("a prefix has a token that is neither text nor time")
    if not with_times:
        return [token for token in prefix if token < tokenizer.end]
    if not prefix or prefix[0] >= tokenizer.first_time:
        return list(prefix)
    return [tokenizer.first_time, *prefix]


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
