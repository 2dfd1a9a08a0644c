"""How the utterances of a live channel are heard: which audio, in which language, told what before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import mlx.core as mx

from models.whisper.decoding import Decoding, DecodingOptions, WindowText, context_tokens
from models.whisper.tokenizer import WhisperTokenizer
from models.whisper.words import Word
from worker.audio.pcm import SAMPLE_RATE_HZ, Floats
from worker.speech.fairness import Urgency
from worker.speech.live_agreement import Piece, pieces_of, tokens_of
from worker.speech.live_language import LanguageChoice
from worker.speech.live_utterance import Heard, Utterance, without_loop
from worker.speech.options import SpeechOptions

_RESET_TEMPERATURE = 0.5
# Nobody speaks so fast: what a window says beyond it was not said.
_MAX_CHARACTERS_PER_SECOND = 40
_FREE_CHARACTERS = 10
_MIN_ROOM = 8  # tokens of a window's text, and of its prompt, that a prefix leaves


class Hearer:
    """Hears the utterances of one channel.

    The text before is told where that was asked for, and to what follows an utterance that was cut. The initial prompt
    is told to every utterance, for each begins a text anew.

    Args:
        tokenizer: of the model.
        num_positions: of its decoder.
        picture: makes what its encoder reads, [F, M], of samples [S].
        options: of the request.
        choice: of its language.

    Raises:
        EncodeError: the tokenizer fails on the initial prompt or a phrase.
    """

    def __init__(
        self,
        tokenizer: WhisperTokenizer,
        num_positions: int,
        picture: Callable[[mx.array], mx.array],
        options: SpeechOptions,
        choice: LanguageChoice,
    ) -> None:
        self.tokenizer = tokenizer
        self.options = options
        self.choice = choice
        self._num_positions = num_positions
        self._picture = picture
        prompt = options.initial_prompt.strip()
        self._prompt = tokenizer.encode(f" {prompt}") if prompt else []
        self._previous: list[int] = []
        self._context = self._told()

    @property
    def max_stable(self) -> int:
        """Tokens of stable text behind which a window has hardly any room for more."""
        return self.max_prefix * 3 // 4

    @property
    def max_prefix(self) -> int:
        """Tokens that a window's text may begin with."""
        return self._num_positions // 2 - _MIN_ROOM

    def hear(
        self, utterance: Utterance, samples: Floats, urgency: Urgency, *, on_end: Callable[[Heard], None]
    ) -> LiveHearing:
        """Return a hearing of an utterance's audio from its start.

        Args:
            utterance: what is spoken.
            samples: float32 [S], all of its audio that is to be heard.
            urgency: of it; what may be final is decoded as the request asks, an interim quickly.
            on_end: takes what it found.
        """
        return LiveHearing(self, utterance, self._picture(mx.array(samples)), len(samples), urgency, on_end)

    def decoding(self, options: DecodingOptions, prefix: Sequence[int]) -> Decoding:
        """Return how a window is decoded whose text begins with these tokens."""
        return Decoding(self.tokenizer, options, self._num_positions, self._context, prefix)

    def remember(self, tokens: Sequence[int], temperature: float, *, is_cut: bool) -> None:
        """Note the text of an utterance that is final.

        Args:
            tokens: of the text.
            temperature: that it was decoded at; what was by chance is told to nobody.
            is_cut: whether its sentence goes on in the next.
        """
        conditions = self.options.conditions_on_previous
        if temperature > _RESET_TEMPERATURE or not (conditions or is_cut):
            self._previous = []
        elif conditions:
            self._previous = [*self._previous, *tokens][-self._num_positions :]
        else:
            self._previous = list(tokens)
        self._context = self._told()

    def _told(self) -> list[int]:
        before = [*self._prompt, *self._previous]
        return context_tokens(self.tokenizer, self._num_positions, before, self.options.phrases)


class LiveHearing:
    """One hearing of an utterance; see `worker.speech.hearing.Hearing`.

    Attributes:
        start: sample of the recording from which it hears.
        stop: sample up to which it does.
        urgency: how soon it must be heard.
        is_wanted: whether it is still of use.
    """

    def __init__(
        self,
        hearer: Hearer,
        utterance: Utterance,
        mel: mx.array,
        num_samples: int,
        urgency: Urgency,
        on_end: Callable[[Heard], None],
    ) -> None:
        """Keep what `Hearer.hear` gives."""
        self.start = utterance.turn.start
        self.stop = self.start + num_samples
        self.urgency = urgency
        self.is_wanted = True
        self._hearer = hearer
        self._utterance = utterance
        self._mel = mel
        self._seconds = num_samples / SAMPLE_RATE_HZ
        self._is_thorough = urgency.is_final
        self._on_end = on_end
        self._options = hearer.options.decoding(None)
        self._is_placed = False
        self._is_sure = True
        self._probability = 0.0

    @property
    def mel(self) -> mx.array:
        """float32 [F, M]."""
        return self._mel

    @property
    def languages(self) -> Sequence[str] | None:
        """Among which the language must be found; None once the utterance has stable text in one."""
        return self._hearer.choice.among if self._utterance.language is None else None

    @property
    def options(self) -> DecodingOptions:
        """Of the decoding that was begun."""
        return self._options

    @property
    def may_be_final(self) -> bool:
        """Whether its text, if it passes the thresholds, is what a thorough hearing would find."""
        return self._is_thorough or self._hearer.options.num_beams == 1

    def begin(self, probabilities: Mapping[str, float] | None) -> Decoding:
        """Return how the window is decoded: beginning with the text that is stable now."""
        utterance, hearer = self._utterance, self._hearer
        language = utterance.language or hearer.choice.choose(probabilities, self._seconds)
        self._probability = (probabilities or {}).get(language or "", 0.0)
        self._is_sure = hearer.choice.is_sure(probabilities, language, self._seconds)
        options = replace(hearer.options.decoding(language), with_times=False)
        if not self._is_thorough:
            options = replace(options, temperatures=options.temperatures[:1], num_beams=1)
        self._options = options
        return hearer.decoding(options, utterance.agreement.tokens)

    def spoken(self, text: WindowText) -> tuple[int, ...]:
        """Return the tokens to place: of what may be the final text where words were asked for, and of what is cut."""
        turn = self._utterance.turn
        is_due = self._hearer.options.has_words and self.may_be_final and self.stop >= turn.needed
        self._is_placed = is_due or turn.is_cut
        return tokens_of(self._pieces(text)) if self._is_placed else ()

    def end(self, text: WindowText, words: Sequence[Word] | None) -> None:
        """Hand over what was found."""
        pieces = self._pieces(text)
        is_lost = bool(pieces) and len(tokens_of(pieces)) < len(text.tokens)
        is_settled = self._is_thorough or (self.may_be_final and text.is_accepted and not is_lost)
        needs_words = bool(pieces) and (self._hearer.options.has_words or self._utterance.turn.is_cut)
        heard = Heard(
            stop=self.stop,
            text=text,
            pieces=pieces,
            language=self._options.language,
            probability=self._probability,
            words=None if words is None else tuple(words),
            is_believed=bool(pieces) and (self._is_thorough or text.is_accepted),
            may_agree=text.is_accepted and self._is_sure,
            may_be_final=is_settled and (self._is_placed or not needs_words),
        )
        if self.is_wanted:
            self._on_end(heard)

    def _pieces(self, text: WindowText) -> tuple[Piece, ...]:
        """Return what is said in a window; nothing of silence, and of what nobody can say in the time."""
        if text.is_silence(self._options):
            return ()
        pieces = without_loop(pieces_of(self._hearer.tokenizer.split_words(text.tokens, self._options.language)))
        num_characters = sum(len(piece.text) for piece in pieces)
        return pieces if num_characters <= _FREE_CHARACTERS + _MAX_CHARACTERS_PER_SECOND * self._seconds else ()
