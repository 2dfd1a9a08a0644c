"""Transcribes audio as a file: as fast as may be, with each segment told once, when it is final.

Channels, and clips where windows need not know what was said before, are strands that are heard side by side. Segments
leave in order of time: one waits while an earlier one may still be found in another channel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from models.whisper.segments import Stretch
from worker.audio.pcm import SAMPLE_RATE_HZ
from worker.audio.recording import Recording
from worker.errors import InvalidField
from worker.events import SpeechEvent, SpeechProgress
from worker.speech.channel import Channel
from worker.speech.failures import audio_failure
from worker.speech.fairness import Urgency
from worker.speech.file_hearing import FileHearing
from worker.speech.hearing import SpeechUsage
from worker.speech.language import Language
from worker.speech.loaded import LoadedSpeech
from worker.speech.request import SpeechRequest
from worker.speech.strand import Strand
from worker.speech.telling import Telling

PROGRESS_INTERVAL_S = 1.0


class FileTranscriber:
    """See `Transcriber`.

    Args:
        request: what is asked for.
        speech: the model.
        clock: monotonic seconds.
    """

    urgency = Urgency.PATIENT

    def __init__(self, request: SpeechRequest, speech: LoadedSpeech, clock: Callable[[], float]) -> None:
        self._request = request
        self._speech = speech
        self._clock = clock
        self._language = Language(request.options, speech.tokenizer)
        self._telling = Telling(request.options)
        self._channels: list[Channel] = []
        self._told = SpeechProgress(0.0, 0.0)
        self._told_at = clock()

    @property
    def is_complete(self) -> bool:
        """Whether everything has come, is heard, and is told."""
        return bool(self._channels) and all(channel.is_complete for channel in self._channels)

    def listen(self) -> bool:
        """Listen to a piece of the channel that is furthest behind."""
        self._open_channels()
        for channel in self._channels:
            if (error := channel.recording.error) is not None:
                raise audio_failure(error)
        tracks = [channel.track for channel in self._channels if channel.track.can_listen]
        if tracks:
            track = min(tracks, key=lambda each: each.num_heard)
            track.listen()
            if track.is_heard:
                self._check_clips(track.duration_s)
        return any(track.can_listen for track in tracks)

    def next(self) -> FileHearing | None:
        """Return a window of the first strand that has one; alone, while the language is to be found."""
        found = next(self._ready(), None)
        return None if found is None else FileHearing(self._request, *found, self._language)

    def has_next(self) -> bool:
        """See `Transcriber`."""
        return next(self._ready(), None) is not None

    def take_events(self) -> list[SpeechEvent]:
        """Return what was found since, in order of time, and once a second how far it all is."""
        events: list[SpeechEvent] = []
        if (found := self._language.take_found()) is not None:
            events.append(found)
        while (channel := self._channel_to_tell()) is not None:
            segment = channel.take()
            told = self._telling.told(segment, channel.index, self._language.told, is_last=channel.is_complete)
            events.append(told)
        for channel in self._channels:
            channel.forget()
        if (progress := self._progress()) is not None:
            events.append(progress)
        return events

    def usage(self) -> SpeechUsage:
        """Return how long the audio is so far, and the speech in it; of separate channels the longest."""
        speech = [speech_s for channel in self._channels if (speech_s := channel.track.speech_s) is not None]
        return SpeechUsage(self._received_s, max(speech, default=None))

    def _ready(self) -> Iterator[tuple[Strand, Stretch]]:
        """Yield windows that can be heard now."""
        strands = [strand for channel in self._channels for strand in channel.strands]
        if self._language.is_known or not any(strand.is_open for strand in strands):
            yield from ((strand, stretch) for strand in strands if (stretch := strand.ready()) is not None)

    @property
    def _received_s(self) -> float:
        return max((channel.recording.num_samples for channel in self._channels), default=0) / SAMPLE_RATE_HZ

    def _open_channels(self) -> None:
        """Take the recordings, once it is known how many there are."""
        if not self._channels:
            recordings = self._request.audio.recordings
            self._channels = [self._channel(index, each) for index, each in enumerate(recordings)]

    def _channel(self, index: int, recording: Recording) -> Channel:
        return Channel(index, recording, self._request, self._speech)

    def _check_clips(self, duration_s: float) -> None:
        for index, (start_s, _) in enumerate(self._request.options.clips or ()):
            if start_s >= duration_s:
                path = f"{self._request.options.path}.clips[{index}].start_offset"
                raise InvalidField(path, f"the audio ends at {duration_s:g} s")

    def _channel_to_tell(self) -> Channel | None:
        """Return the channel whose next segment is the earliest of all that may still come."""
        earliest = min(self._channels, key=lambda channel: channel.position_s, default=None)
        return earliest if earliest is not None and earliest.has_segment else None

    def _progress(self) -> SpeechProgress | None:
        now, received_s = self._clock(), self._received_s
        if now - self._told_at < PROGRESS_INTERVAL_S and not self.is_complete:
            return None
        position_s = min((channel.position_s for channel in self._channels), default=0.0)
        progress = SpeechProgress(received_s, min(position_s, received_s))
        if progress == self._told:
            return None
        self._told = progress
        self._told_at = now
        return progress
