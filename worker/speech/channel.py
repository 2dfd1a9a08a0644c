"""One channel of a request's audio: its strands, and its segments in order."""

from __future__ import annotations

import math
from collections.abc import Sequence

from models.whisper.audio import FRAMES_PER_SECOND
from models.whisper.segments import Segment, Transcript
from worker.audio.recording import Recording
from worker.speech.loaded import LoadedSpeech
from worker.speech.options import SpeechOptions
from worker.speech.request import SpeechRequest
from worker.speech.strand import UNKNOWN_FRAMES, Strand
from worker.speech.track import Track
from worker.speech.voice import Voice


class Channel:
    """A recording on its way to segments.

    Args:
        index: of the channel, from 0.
        recording: of the channel.
        request: whose it is.
        speech: the model.

    Attributes:
        strands: in the order of their times.
    """

    def __init__(self, index: int, recording: Recording, request: SpeechRequest, speech: LoadedSpeech) -> None:
        self.index = index
        self.recording = recording
        voice = Voice(speech.make_detector) if request.options.filters_voice else None
        self.track = Track(recording, speech.log_mel, voice)
        self.strands: Sequence[Strand] = [
            Strand(self.track, _transcript(clips, request.options, speech), of_whole=request.is_whole)
            for clips in _runs(request.options)
        ]
        self._forgotten_s = 0.0

    @property
    def is_complete(self) -> bool:
        """Whether no segment comes any more."""
        return self.track.is_heard and all(strand.is_complete and not strand.segments for strand in self.strands)

    @property
    def has_segment(self) -> bool:
        """Whether the next segment is there."""
        strand = self._first
        return strand is not None and bool(strand.segments)

    @property
    def position_s(self) -> float:
        """Seconds of the recording before which no more segments come; infinity at the end."""
        strand = self._first
        if strand is None:
            return math.inf
        return strand.segments[0].start_s if strand.segments else strand.position_s

    def take(self) -> Segment:
        """Return the next segment, where there is one."""
        strand = self._first
        if strand is None:
            raise IndexError("the channel has no more segments")
        return strand.segments.popleft()

    def forget(self) -> None:
        """Let go of audio that no window needs any more; of a second or more at once."""
        before_s = min((strand.position_s for strand in self.strands), default=math.inf)
        before_s = min(before_s, self.track.num_heard / FRAMES_PER_SECOND)
        if before_s >= self._forgotten_s + 1.0:
            self.track.forget(int(before_s * FRAMES_PER_SECOND))
            self._forgotten_s = before_s

    @property
    def _first(self) -> Strand | None:
        """The strand whose segments are next to be taken."""
        return next((strand for strand in self.strands if strand.segments or not strand.is_complete), None)


def _runs(options: SpeechOptions) -> list[Sequence[tuple[int, int]] | None]:
    """Return the clips of each strand, in frames; None: all of the recording."""
    if options.clips is None:
        return [None]
    clips = [
        (round(start_s * FRAMES_PER_SECOND), UNKNOWN_FRAMES if end_s is None else round(end_s * FRAMES_PER_SECOND))
        for start_s, end_s in options.clips
    ]
    return [clips] if options.conditions_on_previous else [[clip] for clip in clips]


def _transcript(clips: Sequence[tuple[int, int]] | None, options: SpeechOptions, speech: LoadedSpeech) -> Transcript:
    config = speech.config
    asked = options.languages[0] if len(options.languages) == 1 else None
    return Transcript(
        speech.tokenizer, options.transcript(asked), UNKNOWN_FRAMES, config.num_frames, config.n_text_ctx, clips
    )
