"""What is known of a recording before its windows are heard: how loud it gets, and where somebody speaks."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np

from models.whisper.audio import FRAMES_PER_SECOND, HOP_SAMPLES, SAMPLE_RATE_HZ, WINDOW_SAMPLES, LogMel
from worker.audio.pcm import Floats
from worker.audio.recording import Recording
from worker.speech.voice import Voice

# What is taken in at once: some hundredths of a second of work.
PIECE_FRAMES = 10 * FRAMES_PER_SECOND
# Frames around a part of a recording whose samples belong to windows of its own frames.
_MARGIN_FRAMES = 2
# In a picture, the eight decades that the quietest may be below the loudest.
_RANGE = 2.0
# What the detector needs to hear beyond a moment to be sure of it.
_AHEAD_FRAMES = FRAMES_PER_SECOND // 2


class Track:
    """A recording that is listened to while it comes, and the pictures of its parts.

    Args:
        recording: one channel.
        log_mel: of the model.
        voice: finds speech; None: everything counts as speech, but for parts without any sound, such as skipped ones.
    """

    def __init__(self, recording: Recording, log_mel: LogMel, voice: Voice | None) -> None:
        self.recording = recording
        self._log_mel = log_mel
        self._voice = voice
        self._num_heard = 0  # frames
        self._num_voiced = 0  # samples
        self._is_ended = False
        # The loudest of everything up to the end of each second.
        self._peaks: list[float] = []
        self._has_sound: list[bool] = []  # of each second

    @property
    def num_frames(self) -> int:
        """Whole frames that came so far."""
        return self.recording.num_samples // HOP_SAMPLES

    @property
    def duration_s(self) -> float:
        """Seconds that came so far."""
        return self.recording.num_samples / SAMPLE_RATE_HZ

    @property
    def num_heard(self) -> int:
        """Frames that were listened to."""
        return self._num_heard

    @property
    def can_listen(self) -> bool:
        """Whether there is anything to listen to at once."""
        is_complete = self.recording.is_complete
        return not self._is_ended and (is_complete or self._num_ready(is_complete=False) > self._num_heard)

    @property
    def is_heard(self) -> bool:
        """Whether no more comes and everything was listened to."""
        return self._is_ended

    @property
    def speech_s(self) -> float | None:
        """Seconds of speech so far; None where nobody looks for it."""
        return None if self._voice is None else self._voice.speech_s

    def listen(self) -> None:
        """Listen to the next piece."""
        is_complete = self.recording.is_complete  # before the number of frames, which grows until then
        stop = self._num_ready(is_complete=is_complete)
        piece = min(self._num_heard + PIECE_FRAMES, stop)
        if piece > self._num_heard:
            self._note_seconds(self._num_heard, piece)
            self._hear(piece * HOP_SAMPLES)
            self._num_heard = piece
        if is_complete and piece == stop and not self._is_ended:
            self._hear(self.recording.num_samples)
            if self._voice is not None:
                self._voice.end(self.duration_s)
            self._is_ended = True

    def is_ready(self, stop_frame: int) -> bool:
        """Whether everything before a frame is known."""
        return self._is_ended or self._num_heard >= stop_frame + _AHEAD_FRAMES

    def picture(self, start_frame: int, stop_frame: int, *, of_whole: bool) -> mx.array:
        """Return the log-mel picture of a part, whose scale hangs on the loudest so far.

        Args:
            start_frame: first.
            stop_frame: behind the last.
            of_whole: whether the loudest of all that came sets the scale; else that of everything before `stop_frame`.

        Returns:
            float32 [F, M].
        """
        picture = self.frames(start_frame, stop_frame)
        seconds = len(self._peaks) if of_whole else min(len(self._peaks), stop_frame // FRAMES_PER_SECOND)
        peak = self._peaks[seconds - 1] if seconds else -np.inf
        own: float = mx.max(picture).item()  # pyright: ignore[reportAssignmentType]
        if peak > own:
            picture = mx.maximum(picture, peak - _RANGE)
        return picture

    def frames(self, start_frame: int, stop_frame: int) -> mx.array:
        """Return the picture of a part by itself; behind the end of the recording there is silence."""
        return self._picture(self._around(start_frame, stop_frame), start_frame, stop_frame)

    def next_speech(self, start_s: float, end_s: float) -> float | None:
        """Return where speech begins between two seconds, `start_s` where it has begun; None where there is none."""
        if self._voice is not None:
            return self._voice.next_speech(start_s, end_s)
        return start_s if any(self._has_sound[int(start_s) : math.ceil(end_s)]) else None

    def is_speech(self, start_s: float, end_s: float) -> bool:
        """Whether somebody speaks between two seconds."""
        return self._voice is None or self._voice.is_speech(start_s, end_s)

    def forget(self, before_frame: int) -> None:
        """Let go of audio that no window needs any more."""
        before_frame = max(0, min(before_frame, self._num_heard) - _MARGIN_FRAMES)
        self.recording.forget(before_frame * HOP_SAMPLES)
        if self._voice is not None:
            self._voice.forget(before_frame / FRAMES_PER_SECOND)

    def _num_ready(self, *, is_complete: bool) -> int:
        """Return behind which frame nothing can be listened to yet: peaks are of whole seconds."""
        if is_complete:
            return self.num_frames
        seconds = max(0, self.num_frames - _MARGIN_FRAMES) // FRAMES_PER_SECOND
        return seconds * FRAMES_PER_SECOND

    def _around(self, start_frame: int, stop_frame: int) -> Floats:
        """Return the samples that the picture of a part hangs on."""
        lead = min(_MARGIN_FRAMES, start_frame)
        return self.recording.read((start_frame - lead) * HOP_SAMPLES, (stop_frame + _MARGIN_FRAMES) * HOP_SAMPLES)

    def _picture(self, samples: Floats, start_frame: int, stop_frame: int) -> mx.array:
        """Return the picture of a part, of the samples around it."""
        lead = min(_MARGIN_FRAMES, start_frame)
        num_needed = max((lead + stop_frame - start_frame + _MARGIN_FRAMES) * HOP_SAMPLES, WINDOW_SAMPLES)
        picture = self._log_mel(mx.array(samples), num_needed - samples.size)
        return picture[lead : lead + stop_frame - start_frame]

    def _note_seconds(self, start_frame: int, stop_frame: int) -> None:
        """Note how loud the next seconds get. Where there is no sound at all no picture is needed to know."""
        samples = self._around(start_frame, stop_frame)
        peak = self._peaks[-1] if self._peaks else -np.inf
        starts = range(0, stop_frame - start_frame, FRAMES_PER_SECOND)
        if not samples.any():
            self._peaks += [peak] * len(starts)
            self._has_sound += [False] * len(starts)
            return
        loudest: Floats = np.array(mx.max(self._picture(samples, start_frame, stop_frame), axis=1), np.float32)
        own = samples[min(_MARGIN_FRAMES, start_frame) * HOP_SAMPLES :]
        for start in starts:
            peak = max(peak, float(loudest[start : start + FRAMES_PER_SECOND].max()))
            self._peaks.append(peak)
            self._has_sound.append(bool(own[start * HOP_SAMPLES :][:SAMPLE_RATE_HZ].any()))

    def _hear(self, stop: int) -> None:
        if self._voice is not None and stop > self._num_voiced:
            self._voice.hear(self.recording.read(self._num_voiced, stop))
        self._num_voiced = stop
