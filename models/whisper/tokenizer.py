"""Whisper's tokens: text, and the controls whose ids follow from the size of the vocabulary alone.

After the text come, in this order: end of text, start of transcript, the languages, translate, transcribe, start of a
language model's text, start of the text before, no speech, no timestamps, and the times 0.00 to 30.00 seconds.
Source: OpenAI's whisper, `tokenizer.py`.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence
from enum import Enum

from models.checkpoint.errors import CheckpointCorrupt
from models.checkpoint.tokenizer import TOKENIZER_FILE, Tokenizer
from models.whisper.config import Config
from models.whisper.languages import LANGUAGES, UNSPACED

SECONDS_PER_TIME = 0.02
_NUM_TIMES = 1501
_MARKS = '"#()*+/:;<=>@[\\]^_`{|}~「」『』'
_GROUPS = "<< >> <<< >>> -- --- -( -[ (' (\" (( )) ((( ))) [[ ]] {{ }} ♪♪ ♪♪♪"
# Of these the first token goes even where they take several, which start alike for all from U+2640 to U+267F.
_MUSIC = "♩♪♫♬♭♮♯"
_IN_WORDS = ("-", "'")
_CONTROL_START = "<|"
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Task(Enum):
    """What the text shall be."""

    TRANSCRIBE = "transcribe"
    TRANSLATE = "translate"


class WhisperTokenizer:
    """Text to token ids and back, and the ids of controls.

    Attributes:
        end: end of text; every id from here on is a control or a time.
        start: start of transcript.
        previous: starts the text before.
        no_speech: its probability at the start says that nobody speaks.
        no_times: asks for text without times.
        first_time: 0.00 seconds.
        languages: codes in the order of their tokens; none in an English-only model.
    """

    def __init__(self, tokenizer: Tokenizer, config: Config) -> None:
        """Take over the tokenizer of a checkpoint.

        Raises:
            CheckpointCorrupt: it has another number of tokens than the model.
        """
        self._tokenizer = tokenizer
        self.vocab_size = config.n_vocab
        self.first_time = config.n_vocab - _NUM_TIMES
        self.no_times = self.first_time - 1
        self.no_speech, self.previous, self._start_of_lm = (self.first_time - back for back in (2, 3, 4))
        self._transcribe, self._translate = self.first_time - 5, self.first_time - 6
        self._first_language = self._translate - config.num_languages
        self.start = self._first_language - 1
        self.end = self.start - 1
        self.is_multilingual = config.is_multilingual
        self.languages = LANGUAGES[: config.num_languages] if config.is_multilingual else ()
        if tokenizer.eos_token_ids != frozenset({self.end}):
            raise CheckpointCorrupt("ends a text with another token than the model does", file=TOKENIZER_FILE)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text; controls written out in it are text.

        Raises:
            EncodeError: the tokenizer fails on this text.
        """
        pieces = text.replace(_CONTROL_START, _CONTROL_START[0] + "\0" + _CONTROL_START[1]).split("\0")
        return [token for piece in pieces if piece for token in self._tokenizer.encode(piece, False)]

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of the ids, controls and times left out; bytes that are no whole character are replaced."""
        return self._bytes(tokens).decode("utf-8", "replace")

    def prompt(self, language: str | None, task: Task, *, with_times: bool) -> list[int]:
        """Return the ids that a transcript starts with.

        Args:
            language: one of `languages`; English-only models take no language and no task.
            task: what the text shall be.
            with_times: whether the model shall say when segments start and end.
        """
        ids = [self.start]
        if self.is_multilingual:
            ids += [self.language_id(language or "en"), self._task_id(task)]
        return ids if with_times else [*ids, self.no_times]

    def language_id(self, language: str) -> int:
        """Return the token of one of `languages`; ValueError for any other."""
        return self._first_language + self.languages.index(language)

    def suppressed(self) -> list[int]:
        """Return the ids that are never said: controls, and text that notes what is not speech, as `(LAUGHTER)`."""
        controls = (self._transcribe, self._translate, self.start, self.previous, self._start_of_lm, self.no_speech)
        return sorted({*controls, *self._non_speech()})

    def blank(self) -> list[int]:
        """Return the ids that make no transcript: a space, and the end at once."""
        return [*self.encode(" "), self.end]

    def split_words(self, tokens: Sequence[int], language: str | None) -> list[tuple[str, list[int]]]:
        """Split the ids of a text into words, punctuation on its own; each with the space before it."""
        characters = self._split_characters(tokens)
        if language in UNSPACED:
            return characters
        words: list[tuple[str, list[int]]] = []
        for text, ids in characters:
            starts = text.startswith(" ") or text.strip() in string.punctuation or ids[0] >= self.end
            if starts or not words:
                words.append((text, ids))
            else:
                words[-1] = (words[-1][0] + text, words[-1][1] + ids)
        return words

    def _split_characters(self, tokens: Sequence[int]) -> list[tuple[str, list[int]]]:
        """Split ids where the text so far is whole characters."""
        found: list[tuple[str, list[int]]] = []
        waiting: list[int] = []
        for token in tokens:
            waiting.append(token)
            raw = self._bytes(waiting)
            text = raw.decode("utf-8", "replace")
            if not text.endswith(_REPLACEMENT) or raw.endswith(_REPLACEMENT.encode()):
                found.append((text, waiting))
                waiting = []
        if waiting:
            found.append((self.decode(waiting), waiting))
        return found

    def _bytes(self, tokens: Iterable[int]) -> bytes:
        return b"".join(self._tokenizer.token_bytes(token) for token in tokens if token < self.end)

    def _task_id(self, task: Task) -> int:
        return self._transcribe if task is Task.TRANSCRIBE else self._translate

    def _non_speech(self) -> set[int]:
        found = {self.encode(f" {mark}")[0] for mark in _IN_WORDS}
        for symbol in (*_MARKS, *_GROUPS.split(), *_MUSIC):
            for ids in (self.encode(symbol), self.encode(f" {symbol}")):
                if len(ids) == 1 or symbol in _MUSIC:
                    found.add(ids[0])
        return found
