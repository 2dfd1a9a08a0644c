"""One channel of a live stream: its utterances, one after the other, and what is told of them.

Hearings are paced by the audio that came. Never is more than one of a channel open, so none waits behind another: what
cannot be heard in time is left out, and only ever of interims. As soon as speech seems to have ended it is all heard,
long before the silence is as long as was asked for; if nobody goes on, that was the final hearing.
"""

from __future__ import annotations

from collections import deque

from worker.audio.recording import Recording
from worker.speech.fairness import Urgency
from worker.speech.live_clock import Pace
from worker.speech.live_hearing import Hearer, LiveHearing
from worker.speech.live_listener import Listener
from worker.speech.live_telling import Teller
from worker.speech.live_turns import CHUNK
from worker.speech.live_utterance import Heard, Utterance
from worker.speech.live_words import cut_behind
from worker.speech.options import LiveOptions

_RATE_HZ = 16_000
_SEEMS_OVER = 4 * CHUNK
_FINAL_TAIL = _RATE_HZ * 3 // 10  # heard behind the speech at its end; more silence only invites inventions
_MIN_INTERIM = _RATE_HZ * 6 // 10
_MIN_HEARING = _RATE_HZ // 10


class LiveChannel:
    """Turns one recording into events.

    Args:
        recording: what comes.
        listener: of it.
        hearer: how its utterances are heard.
        teller: makes its events.
        options: of the stream.
    """

    def __init__(
        self, recording: Recording, listener: Listener, hearer: Hearer, teller: Teller, options: LiveOptions
    ) -> None:
        self._recording = recording
        self._listener = listener
        self._turns = listener.turns
        self._hearer = hearer
        self._teller = teller
        self._options = options
        self._pace = Pace(round(options.interim_interval_s * _RATE_HZ))
        self._utterances: deque[Utterance] = deque()
        self._open: LiveHearing | None = None
        self._has_overtaken = False

    @property
    def is_complete(self) -> bool:
        """Whether all audio has come, and all of it is final."""
        return self._listener.is_finished and not self._utterances

    @property
    def received(self) -> int:
        """Samples that came."""
        return self._listener.received

    @property
    def processed(self) -> int:
        """Samples of which all that was asked for is told: they are heard, or nobody speaks there."""
        if not self._utterances:
            return self._listener.position
        head = self._utterances[0]
        if head.turn.end is None and (head.is_covered or not self._options.interim_results):
            return self._listener.position
        return head.turn.start if head.heard is None else min(head.heard.stop, self._listener.position)

    @property
    def speech(self) -> int:
        """Samples in which somebody speaks."""
        return self._turns.speech

    @property
    def urgency(self) -> Urgency | None:
        """Of the hearing that is due; None where none is."""
        due = self._due()
        return None if due is None else due[1]

    @property
    def is_finalizing(self) -> bool:
        """Whether it has not come to where an utterance is to be ended."""
        return self._listener.is_finalizing

    def finalize(self, place: int) -> None:
        """End the utterance that is spoken at a sample."""
        self._listener.finalize(place)

    def listen(self) -> bool:
        """Judge some of what came; return whether there was anything."""
        has_listened = self._listener.listen()
        if has_listened:
            self._note_turns()
            self._settle()
        return has_listened

    def next(self) -> LiveHearing | None:
        """Return the hearing that is due, if one is; it is open until its end, or until another overtakes it."""
        due = self._due()
        if due is None:
            return None
        if self._open is not None:
            self._open.is_wanted = False
            self._has_overtaken = True
        head, (stop, urgency) = self._utterances[0], due
        samples = self._recording.read(head.turn.start, stop)
        self._open = self._hearer.hear(head, samples, urgency, on_end=self._take)
        self._pace.start(self.received)
        return self._open

    def _due(self) -> tuple[int, Urgency] | None:
        """Return up to which sample to hear the first utterance now, and how urgent that is; None: not now."""
        if not self._utterances:
            return None
        head, turns = self._utterances[0], self._turns
        if self._open is not None and not self._is_overtaken(self._open, head):
            return None
        turn = head.turn
        if turn.end is not None:
            return min(turn.end, turn.speech_end + _FINAL_TAIL), Urgency.OVER
        if turns.silence >= _SEEMS_OVER:
            return None if head.is_covered else (turns.position, Urgency.PAUSING)
        is_long_enough = turns.position - turn.start >= _MIN_INTERIM
        # In a silence that has just begun it is better to wait whether it is the end.
        is_speaking = turns.silence == 0
        if self._options.interim_results and is_speaking and is_long_enough and self._pace.may_start(self.received):
            return turns.position, Urgency.SPEAKING
        return None

    def _is_overtaken(self, hearing: LiveHearing, head: Utterance) -> bool:
        """Whether the open hearing cannot be the final one, and that one is due."""
        if hearing.may_be_final and hearing.stop >= head.turn.needed:
            return False
        # In choppy speech every second one is let go to its end.
        return head.turn.end is not None or (not self._has_overtaken and self._turns.silence >= _SEEMS_OVER)

    def _take(self, heard: Heard) -> None:
        self._open, self._has_overtaken = None, False
        self._pace.end(self.received)
        head = self._utterances[0]
        head.hear(heard, agrees=self._options.interim_results)
        if head.agreement.tokens:
            self._note_language(head)
        if head.turn is self._turns.current and len(head.agreement.tokens) > self._hearer.max_stable:
            self._turns.cut()
            self._note_turns()
        if not self._settle() and heard.is_believed and self._options.interim_results:
            self._tell_interim(head)

    def _tell_interim(self, head: Utterance) -> None:
        if self._pace.may_tell(self.received) and self._teller.tell_interim(head):
            self._pace.tell(self.received)

    def _note_turns(self) -> None:
        """Take over what the listener found, and let go of audio that nothing needs."""
        turns = self._turns
        self._utterances.extend(Utterance(turn) for turn in turns.begun)
        turns.begun.clear()
        for is_speech, place in turns.changes:
            if self._options.voice_activity_events:
                self._teller.tell_voice(is_speech, place)
        turns.changes.clear()
        self._recording.forget(min([turns.floor, *(each.turn.start for each in self._utterances)]))

    def _settle(self) -> bool:
        """Make final what has ended and is heard; return whether that was anything."""
        has_ended = False
        while self._utterances and self._is_settled(self._utterances[0]):
            self._end(self._utterances.popleft())
            has_ended = True
        return has_ended

    def _is_settled(self, head: Utterance) -> bool:
        turn = head.turn
        if turn.end is None:
            return False
        is_nothing = turn.end - turn.start < _MIN_HEARING
        has_room = len(head.agreement.tokens) <= self._hearer.max_prefix
        return is_nothing or not has_room or head.is_covered

    def _end(self, head: Utterance) -> None:
        if self._open is not None:
            self._open.is_wanted = False
            self._open = None
        tokens, heard = head.said(), head.heard
        if head.turn.is_cut and tokens:
            tokens = self._carry(head, tokens)
        if tokens and heard is not None:
            self._note_language(head)
        words = () if heard is None or not self._hearer.options.has_words else heard.words or ()
        self._teller.tell_final(head, tokens, words)
        self._hearer.remember(tokens, heard.text.temperature if heard else 0.0, is_cut=head.turn.is_cut)

    def _carry(self, head: Utterance, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Leave the last words of an utterance that was cut to the next, which begins with them; return the others."""
        turn, following = head.turn, self._utterances[0].turn
        if head.heard is not None and head.heard.words is not None:
            end_s = (following.start - turn.start) / _RATE_HZ
            num_kept, place_s = cut_behind(head.heard.words, len(head.agreement.tokens), end_s)
            tokens, place = tokens[:num_kept], turn.start + round(place_s * _RATE_HZ)
        else:
            place = head.stable_before
        turn.end = turn.speech_end = following.start = following.speech_start = min(place, following.start)
        return tokens

    def _note_language(self, head: Utterance) -> None:
        heard = head.heard
        if head.language is not None or heard is None or heard.language is None:
            return
        head.language = heard.language
        if self._hearer.choice.settle(heard.language):
            self._teller.tell_language(heard.language, heard.probability)
