"""What is wrong with audio, in the words of the worker's error table."""

from __future__ import annotations

from worker import errors
from worker.audio.errors import AudioTooLarge, AudioTooLong, AudioUnreadable


def audio_failure(error: Exception) -> errors.WorkerError:
    """Return the failure of a request whose audio has this error; what is no fault of the audio is logged."""
    match error:
        case AudioTooLong():
            return errors.AudioTooLong(error.max_s)
        case AudioTooLarge():
            return errors.AudioTooLarge(str(error), error.max_bytes)
        case AudioUnreadable():
            return errors.AudioUndecodable(str(error))
        case _:
            return errors.incident_of(error, "audio was not taken")
