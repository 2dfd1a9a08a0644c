"""What a request's reader has not taken yet.

The engine never waits for a reader: events pile up here, waiting deltas of a sequence merge into one as long as its
channel stays the same, segments and progress that are overtaken go, and the bytes are bounded by the engine pausing the
rows while `is_full`.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from worker.events import (
    Channel,
    Completed,
    Event,
    Failed,
    PrefillProgress,
    SpeechProgress,
    SpeechSegment,
    TextDelta,
    TokenDetail,
    ToolCallDelta,
    VoiceChange,
    Waiting,
)

DETAIL_BYTES = 16
# Of a segment, a word or a change of the voice, beside its text.
SPEECH_BYTES = 32


@dataclass(slots=True)
class _Held:
    """Deltas of one sequence and channel that go out as one, the first of them since a time of the clock."""

    since: float
    channel: Channel
    parts: list[TextDelta] = field(default_factory=list[TextDelta])
    num_tokens: int = 0


class Outbox:
    """Events of one request on their way from the engine to the reader.

    `charge` belongs to the engine's thread, the byte counts may be read there, and all else belongs to the event loop.
    Each of the two byte counters has one writer, so their difference needs no lock.

    Args:
        max_bytes: of text and token details that may wait.
        coalesce_tokens: hold a sequence's delta back until it has so many tokens; 0: no such bound.
        coalesce_interval_s: hold it back for so long at most; 0: no such bound. Whichever bound is reached first lets
            the delta go, as does the next delta of another channel or call of a tool; a full outbox, or any other event
            behind, lets those of all sequences go.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        max_bytes: int,
        coalesce_tokens: int = 0,
        coalesce_interval_s: float = 0.0,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_bytes = max_bytes
        self._coalesce_tokens = coalesce_tokens
        self._coalesce_interval_s = coalesce_interval_s
        self._clock = clock
        self._events: deque[Event] = deque()
        # By sequence, the one whose first delta is oldest first; a delta in `_events` grows no more.
        self._held: dict[int, _Held] = {}
        self._arrived = asyncio.Event()
        self._charged_bytes = 0
        self._taken_bytes = 0
        self._on_room: Callable[[], None] | None = None
        self._is_closed = False
        self._is_complete = False

    @property
    def is_full(self) -> bool:
        """Whether the reader is so far behind that its row should pause."""
        return self.waiting_bytes >= self._max_bytes

    @property
    def waiting_bytes(self) -> int:
        """Bytes that the engine has sent and the reader has not taken; 0 once closed."""
        return 0 if self._is_closed else self._charged_bytes - self._taken_bytes

    def charge(self, event: Event) -> None:
        """Count an event that the engine is about to hand over."""
        self._charged_bytes += _size(event)

    def notify_room(self, on_room: Callable[[], None]) -> None:
        """Have `on_room` called whenever the outbox is no longer full."""
        self._on_room = on_room

    def put(self, event: Event) -> None:
        """Add an event that was charged; ignored once closed, and after the last one."""
        if self._is_closed or self._is_complete:
            return
        self._is_complete = isinstance(event, Completed | Failed)
        if isinstance(event, TextDelta):
            self._hold(event)
        elif isinstance(event, ToolCallDelta):
            self._seal([event.sequence_index])
            self._events.append(event)
        else:
            self._seal(list(self._held))
            self._drop_overtaken(event)
            self._events.append(event)
        self._arrived.set()

    async def take(self) -> Event:
        """Wait for the next event and return it.

        The wait ends because the engine ends every request with `Completed` or `Failed`.
        """
        while not self._events:
            if due := self._due():
                self._seal(due)
                break
            self._arrived.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s()):
                    await self._arrived.wait()
        event = self._events.popleft()
        self._count_taken(_size(event))
        return event

    def close(self) -> None:
        """Drop what waits and all that comes: the reader has gone."""
        self._is_closed = True
        self._events.clear()
        self._held.clear()
        if self._on_room is not None:
            self._on_room()

    def _drop_overtaken(self, event: Event) -> None:
        """Drop what nobody needs to know once `event` is told."""
        if isinstance(event, SpeechSegment | SpeechProgress):
            for older in [each for each in self._events if _overtakes(event, each)]:
                self._events.remove(older)
                self._count_taken(_size(older))
        elif self._events and isinstance(event, PrefillProgress | Waiting) and _is_alike(event, self._events[-1]):
            self._events.pop()

    def _hold(self, delta: TextDelta) -> None:
        held = self._held.get(delta.sequence_index)
        if held is not None and held.channel is not delta.channel:
            self._seal([delta.sequence_index])
            held = None
        if held is None:
            held = self._held[delta.sequence_index] = _Held(self._clock(), delta.channel)
        held.parts.append(delta)
        held.num_tokens += delta.token_count

    def _due(self) -> list[int]:
        """Return the sequences whose delta is held back no longer."""
        is_each_token = self._coalesce_tokens == 0 and self._coalesce_interval_s == 0
        if is_each_token or self.is_full:
            return list(self._held)
        now = self._clock()
        return [index for index, held in self._held.items() if self._is_due(held, now)]

    def _is_due(self, held: _Held, now: float) -> bool:
        if 0 < self._coalesce_tokens <= held.num_tokens:
            return True
        return self._coalesce_interval_s > 0 and now >= held.since + self._coalesce_interval_s

    def _pause_s(self) -> float | None:
        """Return when the first delta becomes due by itself; None: not before something else comes."""
        if not self._held or self._coalesce_interval_s == 0:
            return None
        oldest = next(iter(self._held.values()))
        return oldest.since + self._coalesce_interval_s - self._clock()

    def _seal(self, indexes: list[int]) -> None:
        for index in indexes:
            held = self._held.pop(index, None)
            if held is None:
                continue
            text = "".join(part.text for part in held.parts)
            tokens = tuple(token for part in held.parts for token in part.tokens)
            self._events.append(TextDelta(text, tokens, held.num_tokens, index, held.channel))

    def _count_taken(self, num_bytes: int) -> None:
        was_full = self.is_full
        self._taken_bytes += num_bytes
        if was_full and not self.is_full and self._on_room is not None:
            self._on_room()


def _is_alike(event: Event, other: Event) -> bool:
    return type(event) is type(other)


def _overtakes(event: SpeechSegment | SpeechProgress, older: Event) -> bool:
    """Tell whether nobody needs an event once another is there: progress, or the segment while it was not final."""
    if isinstance(event, SpeechProgress) or isinstance(older, SpeechProgress):
        return _is_alike(event, older)
    return isinstance(older, SpeechSegment) and not older.is_final and older.segment_id == event.segment_id


def _size(event: Event) -> int:
    match event:
        case TextDelta():
            return len(event.text.encode()) + sum(_detail_size(token) for token in event.tokens)
        case ToolCallDelta():
            return len(event.name.encode()) + len(event.arguments_json.encode())
        case SpeechSegment():
            return _segment_size(event)
        case VoiceChange():
            return SPEECH_BYTES
        case _:
            return 0


def _detail_size(token: TokenDetail) -> int:
    alternatives = sum(DETAIL_BYTES + len(each.raw) for each in token.alternatives)
    return DETAIL_BYTES + len(token.raw) + alternatives


def _segment_size(segment: SpeechSegment) -> int:
    texts = [segment.stable_text, segment.unstable_text, *(text for text, _ in segment.alternatives)]
    words = sum(SPEECH_BYTES + len(word.text.encode()) for word in segment.words)
    return SPEECH_BYTES + sum(len(text.encode()) for text in texts) + words
