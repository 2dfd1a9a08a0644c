"""Which transcriber a request for speech gets."""

from __future__ import annotations

from collections.abc import Callable

from worker.speech.file import FileTranscriber
from worker.speech.hearing import Transcriber
from worker.speech.live import LiveTranscriber
from worker.speech.loaded import LoadedSpeech
from worker.speech.request import SpeechRequest


def make_transcriber(request: SpeechRequest, speech: LoadedSpeech, clock: Callable[[], float]) -> Transcriber:
    """Return a new transcriber.

    Args:
        request: what is asked for.
        speech: the model.
        clock: monotonic seconds.

    Raises:
        EncodeError: the tokenizer fails on a text of the request.
    """
    if request.options.live is None:
        return FileTranscriber(request, speech, clock)
    return LiveTranscriber(request, speech.tokenizer, speech.config.n_text_ctx, speech.log_mel, speech.make_detector)
