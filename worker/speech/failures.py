"""What is wrong with audio, in the words of the worker's error table."""

from __future__ import annotations

import logging

from worker import errors
from worker.audio.errors import AudioNotStored, AudioTooLarge, AudioTooLong, AudioUnreadable


def audio_failure(error: Exception) -> errors.WorkerError:
    """Return the failure of a request whose audio has this error; what is no fault of the audio is logged."""
    match error:
        case AudioTooLong():
            return errors.AudioTooLong(error.max_s)
        case AudioTooLarge():
            return errors.AudioTooLarge(str(error), error.max_bytes)
        case AudioUnreadable():
            return errors.AudioUndecodable(str(error))
        case AudioNotStored():
            _log.warning("no room on the disk for audio")
            return errors.AudioNotStored()
        case _:
            return errors.incident_of(error, "audio was not taken")


_log = logging.getLogger(__name__)
