"""What a request for speech asks for, in plain types; `worker.speech.reading` makes them of messages."""

from __future__ import annotations

from dataclasses import dataclass

from models.whisper.decoding import TEMPERATURES, DecodingOptions
from models.whisper.segments import TranscriptOptions
from models.whisper.tokenizer import Task
from worker.audio.pcm import PcmFormat

# Of a file, for which neither beams nor a temperature are asked: on a CPU they take hardly longer than one text, and
# write fewer wrong words (`docs/whisper.md`). What is spoken live is heard again and again, with one.
FILE_BEAMS = 2


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """How speech is transcribed while it is spoken.

    Attributes:
        interim_results: whether segments are told before they are final.
        voice_activity_events: whether it is told when somebody begins and ceases to speak.
        utterance_end_s: silence that ends an utterance.
        interim_interval_s: interim segments come no more often.
    """

    interim_results: bool = False
    voice_activity_events: bool = False
    utterance_end_s: float = 0.5
    interim_interval_s: float = 0.3


@dataclass(frozen=True, slots=True)
class SpeechOptions:
    """A checked TranscriptionConfig, and what a stream adds to it.

    Attributes:
        path: of the config in its request, for errors.
        pcm: how raw samples are written; None: the audio is in a container.
        separates: whether each channel is a transcript of its own; else they are mixed.
        languages: codes of the model; none: any of its languages, one: that, several: one of them. Always none for an
            English-only model.
        task: what the text shall be.
        has_words: whether words get times.
        initial_prompt: text that the first window is told.
        phrases: names and terms to prefer.
        temperatures: tried in turn.
        num_beams: texts side by side at temperature 0.
        best_of: texts by chance of which the best is taken.
        patience: of the beams.
        length_penalty: see `models.whisper.search.rank`; None: by the length.
        conditions_on_previous: whether a window is told what was said before.
        max_compression_ratio: a text that repeats itself more is tried again.
        min_avg_logprob: a text that is less likely is tried again.
        max_no_speech_prob: above, an unlikely text is silence.
        filters_voice: whether only what voice detection calls speech is transcribed.
        clips: (start, end) in seconds of the audio, in order and apart; an end of None is the end of the audio. None:
            all of it.
        max_alternatives: other texts of a segment that are told.
        live: how, while it is spoken; None: as a file.
        time_offset_s: added to all times that are told.
        first_segment_id: of the first segment.
    """

    path: str = "config"
    pcm: PcmFormat | None = None
    separates: bool = False
    languages: tuple[str, ...] = ()
    task: Task = Task.TRANSCRIBE
    has_words: bool = False
    initial_prompt: str = ""
    phrases: tuple[str, ...] = ()
    temperatures: tuple[float, ...] = TEMPERATURES
    num_beams: int = 1
    best_of: int = 1
    patience: float = 1.0
    length_penalty: float | None = None
    conditions_on_previous: bool = True
    max_compression_ratio: float = 2.4
    min_avg_logprob: float = -1.0
    max_no_speech_prob: float = 0.6
    filters_voice: bool = True
    clips: tuple[tuple[float, float | None], ...] | None = None
    max_alternatives: int = 0
    live: LiveOptions | None = None
    time_offset_s: float = 0.0
    first_segment_id: int = 0

    @property
    def num_texts(self) -> int:
        """Texts that are written of a window side by side, at most."""
        return max(self.num_beams, self.best_of)

    def decoding(self, language: str | None) -> DecodingOptions:
        """Return how windows are decoded.

        Args:
            language: that was asked for or found; None in an English-only model.
        """
        return DecodingOptions(
            language=language,
            task=self.task,
            temperatures=self.temperatures,
            best_of=self.best_of,
            num_beams=self.num_beams,
            patience=self.patience,
            length_penalty=self.length_penalty,
            max_compression_ratio=self.max_compression_ratio,
            min_avg_logprob=self.min_avg_logprob,
            max_no_speech_prob=self.max_no_speech_prob,
        )

    def transcript(self, language: str | None) -> TranscriptOptions:
        """Return how windows follow one another; see `decoding`."""
        return TranscriptOptions(
            decoding=self.decoding(language),
            conditions_on_previous=self.conditions_on_previous,
            initial_prompt=self.initial_prompt,
            phrases=self.phrases,
            has_words=self.has_words,
        )
