"""Transcribes audio while it is spoken: interim texts that grow, and a final one soon after each utterance.

Everything goes by the audio's own clock: what comes faster than it is spoken is heard as fast as may be, with fewer
interims. A stream holds the audio of utterances that are not final, and no more.
"""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from models.whisper.tokenizer import WhisperTokenizer
from worker.events import SpeechEvent, SpeechProgress
from worker.speech.failures import audio_failure
from worker.speech.fairness import Urgency
from worker.speech.hearing import SpeechUsage
from worker.speech.live_channel import LiveChannel
from worker.speech.live_hearing import Hearer, LiveHearing
from worker.speech.live_language import LanguageChoice
from worker.speech.live_listener import Detector, Listener
from worker.speech.live_telling import Ledger, Teller
from worker.speech.options import LiveOptions
from worker.speech.request import SpeechRequest

_RATE_HZ = 16_000
_PROGRESS_INTERVAL = _RATE_HZ


class LiveTranscriber:
    """See `worker.speech.hearing.Transcriber`.

    Args:
        request: what is asked for; its options have `live`.
        tokenizer: of the model.
        num_positions: of its decoder.
        picture: makes what its encoder reads, [F, M], of samples [S].
        new_detector: makes a detector of speech for another recording.

    Raises:
        EncodeError: the tokenizer fails on the initial prompt or a phrase.
    """

    def __init__(
        self,
        request: SpeechRequest,
        tokenizer: WhisperTokenizer,
        num_positions: int,
        picture: Callable[[mx.array], mx.array],
        new_detector: Callable[[], Detector],
    ) -> None:
        self._request = request
        self._tokenizer = tokenizer
        self._num_positions = num_positions
        self._picture = picture
        self._new_detector = new_detector
        self._choice = LanguageChoice(request.options.languages, tokenizer.languages)
        first_id = request.options.first_segment_id
        self._ledger = Ledger(first_id, is_begun=first_id > 0)
        self._channels: list[LiveChannel] = []
        self._first = 0  # channel to ask next
        self._processed = 0
        self._told_received = 0
        self._told_processed = 0
        self._hearer()  # what the tokenizer fails on is the request's fault, and known at once

    @property
    def is_complete(self) -> bool:
        """Whether all audio has come and is heard, and all events are taken."""
        return bool(self._channels) and not self._ledger.events and self._is_heard

    @property
    def urgency(self) -> Urgency:
        """Of the hearing that is due next; of an interim where none is."""
        due = [urgency for channel in self._channels if (urgency := channel.urgency) is not None]
        return max(due, default=Urgency.SPEAKING)

    def listen(self) -> bool:
        """Judge some of the audio that came; return whether there was any.

        Raises:
            WorkerError: the audio failed.
        """
        self._open_channels()
        if self._channels and not any(channel.is_finalizing for channel in self._channels):
            for place_s in self._request.finalizations.take():
                for channel in self._channels:
                    channel.finalize(round(place_s * _RATE_HZ))
        has_listened = False
        for channel in self._channels:
            has_listened |= channel.listen()
        return has_listened

    def next(self) -> LiveHearing | None:
        """Return the hearing that is most urgent of those that are due; of equals channels take turns."""
        count, urgency = len(self._channels), self.urgency
        for place in ((self._first + step) % count for step in range(count)):
            if self._channels[place].urgency is urgency:
                self._first = place + 1
                return self._channels[place].next()
        return None

    def has_next(self) -> bool:
        """See `Transcriber`."""
        return any(channel.urgency is not None for channel in self._channels)

    def take_events(self) -> list[SpeechEvent]:
        """Return what happened since, and once a second how far it all is."""
        events = list(self._ledger.events)
        self._ledger.events.clear()
        received = max((channel.received for channel in self._channels), default=0)
        processed = min((channel.processed for channel in self._channels), default=0)
        self._processed = max(self._processed, min(processed, received))
        is_due = received - self._told_received >= _PROGRESS_INTERVAL
        is_last = self._is_heard and self._told_processed < received
        if is_due or is_last:
            self._told_received, self._told_processed = received, received if is_last else self._processed
            lag_s = (received - self._told_processed) / _RATE_HZ
            events.append(SpeechProgress(received / _RATE_HZ, self._told_processed / _RATE_HZ, lag_s))
        return events

    def usage(self) -> SpeechUsage:
        """Return how long the audio is so far, and the speech in it; of separate channels the longest."""
        received = max((channel.received for channel in self._channels), default=0)
        speech = max((channel.speech for channel in self._channels), default=0)
        return SpeechUsage(received / _RATE_HZ, speech / _RATE_HZ)

    @property
    def _is_heard(self) -> bool:
        return bool(self._channels) and all(channel.is_complete for channel in self._channels)

    def _open_channels(self) -> None:
        recordings = self._request.audio.recordings
        for recording in recordings:
            if (error := recording.error) is not None:
                raise audio_failure(error)
        if self._channels:
            return
        options = self._request.options
        live = options.live or LiveOptions()
        self._ledger.num_channels = len(recordings)
        for index, recording in enumerate(recordings):
            listener = Listener(recording, self._new_detector, round(live.utterance_end_s * _RATE_HZ))
            teller = Teller(self._ledger, index, options, self._tokenizer.decode)
            self._channels.append(LiveChannel(recording, listener, self._hearer(), teller, live))

    def _hearer(self) -> Hearer:
        options = self._request.options
        return Hearer(self._tokenizer, self._num_positions, self._picture, options, self._choice)
