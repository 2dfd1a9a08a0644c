"""A window of a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from models.whisper.decoding import Decoding, DecodingOptions, WindowText
from models.whisper.segments import Stretch
from models.whisper.words import Word
from worker.speech.fairness import Urgency
from worker.speech.language import Language
from worker.speech.request import SpeechRequest
from worker.speech.strand import Strand


class FileHearing:
    """See `Hearing`.

    Args:
        request: whose it is.
        strand: which is open from now until the window's end.
        stretch: the window.
        language: of the request; the window may have to find it.

    Attributes:
        mel: float32 [F, M].
        urgency: it can wait.
        is_wanted: always: what is said in a file is told.
        languages: those that may be; None: it is known.
    """

    urgency = Urgency.PATIENT
    is_wanted = True

    def __init__(self, request: SpeechRequest, strand: Strand, stretch: Stretch, language: Language) -> None:
        self._strand = strand
        self._language = language
        self._request = request
        stop_frame = stretch.start_frame + stretch.num_frames
        self.mel = strand.track.picture(stretch.start_frame, stop_frame, of_whole=request.is_whole)
        self.languages = language.candidates
        strand.is_open = True

    @property
    def options(self) -> DecodingOptions:
        """See `Hearing.options`."""
        return self._request.options.decoding(self._language.code)

    def begin(self, probabilities: Mapping[str, float] | None) -> Decoding:
        """Return the decoding of the window, in the language that was found in it."""
        if probabilities is not None:
            self._language.settle(probabilities)
        if self._language.code is not None:
            self._strand.transcript.speak(self._language.code)
        return self._strand.transcript.decoding()

    def spoken(self, text: WindowText) -> tuple[int, ...]:
        """Return the tokens whose words are to be placed."""
        return self._strand.transcript.spoken(text) if self._request.options.has_words else ()

    def end(self, text: WindowText, words: Sequence[Word] | None) -> None:
        """Take what the window said."""
        self._strand.accept(text, words)
