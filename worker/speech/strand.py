"""A strand of a recording: windows that come one after the other, since each begins where the one before ended."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from models.whisper.audio import FRAMES_PER_SECOND
from models.whisper.decoding import WindowText
from models.whisper.segments import Segment, Stretch, Transcript
from models.whisper.words import Word
from worker.speech.track import Track

# Frames of a recording whose end is not known: more than any has.
UNKNOWN_FRAMES = 1 << 40
# A window's first segment starts within its first second, so a window starts where speech does, or a little before.
_MAX_LEAD_S = 1.0
_LEAD_S = 0.2


class Strand:
    """The windows of a channel, or of one clip of it.

    Args:
        track: of the channel.
        transcript: of the strand, made for `UNKNOWN_FRAMES`.
        of_whole: whether windows wait until all of the recording is known.

    Attributes:
        segments: found and not taken yet.
        is_open: whether a window of it is being heard.
    """

    def __init__(self, track: Track, transcript: Transcript, *, of_whole: bool) -> None:
        self.track = track
        self.transcript = transcript
        self.segments: deque[Segment] = deque()
        self.is_open = False
        self._of_whole = of_whole
        self._is_bounded = False

    @property
    def is_complete(self) -> bool:
        """Whether all its windows have been heard."""
        return self.transcript.next is None

    @property
    def position_s(self) -> float:
        """Seconds of the recording before which nothing more is found; infinity at the end."""
        stretch = self.transcript.next
        return math.inf if stretch is None else stretch.start_s

    def ready(self) -> Stretch | None:
        """Return the next window where it can be heard now; windows without speech are passed over."""
        if self.is_open:
            return None
        self._bound()
        while (stretch := self.transcript.next) is not None:
            if not self._is_known(stretch):
                return None
            speech_s = self.track.next_speech(stretch.start_s, stretch.start_s + stretch.duration_s)
            if speech_s is None:
                self.transcript.skip_to(stretch.start_frame + stretch.num_frames)
            elif speech_s - stretch.start_s > _MAX_LEAD_S:
                self.transcript.skip_to(int((speech_s - _LEAD_S) * FRAMES_PER_SECOND))
            else:
                return stretch
        return None

    def accept(self, text: WindowText, words: Sequence[Word] | None) -> None:
        """Take what the open window said."""
        self.segments += self.transcript.accept(text, words, self.track.is_speech)
        self.is_open = False

    def _bound(self) -> None:
        """Tell the transcript where the recording ends, once that is known."""
        if not self._is_bounded and self.track.recording.is_complete:
            self.transcript.end_at(self.track.num_frames)
            self._is_bounded = True

    def _is_known(self, stretch: Stretch) -> bool:
        return self.track.is_heard if self._of_whole else self.track.is_ready(stretch.start_frame + stretch.num_frames)
