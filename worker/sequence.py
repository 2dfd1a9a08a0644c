"""What a text request asks for, and the state of one while it runs; plain Python."""

import logging
import secrets
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from worker.detokenizer import Detokenizer
from worker.events import FinishReason, SequenceFinished, TextDelta, Timing, TokenDetail, Usage
from worker.stops import StopMatcher, Stopped


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How the next token is drawn from the logits.

    Attributes:
        temperature: 0 is greedy.
        top_p: active within 0 < top_p < 1.
        top_k: 0 keeps all.
        min_p: 0 keeps all.
        repetition_penalty: 0 and 1 are off.
        presence_penalty: subtracted once for each distinct token that was seen.
        frequency_penalty: subtracted for each time a token was seen.
        penalty_window: tokens of prompt and output that the three penalties look back over; 0: all of them.
        seed: unsigned, 64 bits.
        logit_bias: added to the logits of these token ids.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_window: int = 20
    seed: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float])


@dataclass(frozen=True, slots=True)
class StoppingSettings:
    """When a sequence ends. A request that ignores the end of sequence has no `eos_token_ids`."""

    max_tokens: int
    stop_strings: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    eos_token_ids: frozenset[int] = frozenset()
    include_stop_in_output: bool = False


@dataclass(frozen=True, slots=True)
class TextRequest:
    """One text generation, checked and tokenized.

    Attributes:
        request_id: what people know it by; two callers, or one that tries again, may have chosen the same.
        key: what the engine knows it by.
        deadline: in seconds of the engine's clock; None: no deadline.
        priority: -128 (last) to 127 (first).
        prefill_progress: post an event after each chunk of the prompt.
        token_details: carry ids and bytes of the tokens in the deltas.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingSettings
    stopping: StoppingSettings
    priority: int = 0
    deadline: float | None = None
    prefill_progress: bool = False
    token_details: bool = False
    key: str = field(default_factory=lambda: secrets.token_hex(8))


class Constraint(Protocol):
    """What restricts the tokens of one sequence, such as a grammar."""

    def advance(self, token_id: int) -> None:
        """Take the token that was drawn."""
        ...

    def mask(self) -> Items[bool] | None:
        """Return for each token id whether it may come next; None: all may."""
        ...


class State(Enum):
    """Where a sequence is; only `Sequence.move` changes it."""

    QUEUED = "queued"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    PAUSED = "paused"  # its reader is behind
    ENDED = "ended"


class StateOrderError(RuntimeError):
    """Raised when a sequence is to enter a state that cannot follow its own."""


@dataclass(frozen=True, slots=True)
class Advance:
    """What one token did to its sequence."""

    delta: TextDelta | None
    finished: SequenceFinished | None


class Sequence:
    """The state of one text request that the device knows nothing of.

    Args:
        request: what was asked for.
        token_bytes: the bytes that a token id adds to the text.
        max_context_tokens: prompt and output together.
        strip_leading_space: see `Detokenizer`.
        constraint: restricts the tokens; `mask` is asked before each draw, `advance` told after it.

    Attributes:
        state: where it is.
        slot: the cache slot it holds; None before it runs.
        prefilled: prompt tokens that the cache holds.
        output_ids: the tokens that were read so far; one more may be on the device.
        token_limit: the number of output tokens after which it ends in any case.
    """

    def __init__(
        self,
        request: TextRequest,
        token_bytes: Callable[[int], bytes],
        max_context_tokens: int,
        *,
        strip_leading_space: bool = False,
        constraint: Constraint | None = None,
    ) -> None:
        self.request = request
        self.constraint = constraint
        self.state = State.QUEUED
        self.slot: int | None = None
        self.prefilled = 0
        self.output_ids: list[int] = []
        self.token_limit = min(request.stopping.max_tokens, max_context_tokens - len(request.prompt_ids))
        self.clock = PhaseClock()
        self._token_bytes = token_bytes
        self._detokenizer = Detokenizer(token_bytes, strip_leading_space=strip_leading_space)
        self._stops = StopMatcher(request.stopping.stop_strings)
        self._unsent_tokens = 0

    @property
    def request_id(self) -> str:
        """The id of its request."""
        return self.request.request_id

    @property
    def key(self) -> str:
        """What the engine knows its request by."""
        return self.request.key

    @property
    def usage(self) -> Usage:
        """Tokens computed so far."""
        return Usage(len(self.request.prompt_ids), len(self.output_ids))

    @property
    def position(self) -> int:
        """The place of the next token to compute: prompt tokens in the cache, then output tokens read."""
        return self.prefilled + len(self.output_ids)

    def is_last_token_pending(self) -> bool:
        """Whether the token on the device is the last one, whatever it is."""
        return len(self.output_ids) + 1 >= self.token_limit

    def move(self, state: State) -> None:
        """Enter another state.

        Raises:
            StateOrderError: `state` cannot follow the present one.
        """
        if state not in _FOLLOWING[self.state]:
            raise StateOrderError(f"{state.value} cannot follow {self.state.value}")
        facts = {"request_id": self.request_id, "before": self.state.value, "after": state.value}
        _log.debug("sequence moved", extra=facts)
        self.state = state

    def advance(self, token_id: int) -> Advance:
        """Take the token that was drawn: text and stop conditions. The constraint is for whoever draws."""
        self.output_ids.append(token_id)
        self._unsent_tokens += 1
        finished = self._finish_by_token(token_id)
        is_text = finished is None or self._shows(finished)
        found = self._stops.add(self._detokenizer.add(token_id) if is_text else "")
        if isinstance(found, Stopped):
            text = found.text + (found.stop_string if self.request.stopping.include_stop_in_output else "")
            finished = SequenceFinished(FinishReason.STOP, stop_string=found.stop_string)
        else:
            finished = finished or self._finish_by_limit()
            text = found if finished is None else found + self._rest()
        return Advance(self._delta(token_id, text, is_end=finished is not None), finished)

    def _finish_by_token(self, token_id: int) -> SequenceFinished | None:
        if token_id in self.request.stopping.eos_token_ids:
            return SequenceFinished(FinishReason.EOS, eos_token_id=token_id)
        if token_id in self.request.stopping.stop_token_ids:
            return SequenceFinished(FinishReason.STOP, stop_token_id=token_id)
        return None

    def _shows(self, finished: SequenceFinished) -> bool:
        return finished.stop_token_id is not None and self.request.stopping.include_stop_in_output

    def _finish_by_limit(self) -> SequenceFinished | None:
        if len(self.output_ids) < self.token_limit:
            return None
        is_own_limit = len(self.output_ids) >= self.request.stopping.max_tokens
        return SequenceFinished(FinishReason.MAX_TOKENS if is_own_limit else FinishReason.CONTEXT_LENGTH)

    def _rest(self) -> str:
        tail = self._stops.add(self._detokenizer.finish())
        return tail.text if isinstance(tail, Stopped) else tail + self._stops.finish()

    def _delta(self, token_id: int, text: str, *, is_end: bool) -> TextDelta | None:
        details: tuple[TokenDetail, ...] = ()
        if self.request.token_details:
            details = (TokenDetail(token_id, self._token_bytes(token_id)),)
        if not (text or details or is_end):
            return None
        token_count, self._unsent_tokens = self._unsent_tokens, 0
        return TextDelta(text, details, token_count)


@dataclass(slots=True)
class PhaseClock:
    """When a request entered each phase, in seconds of the engine's clock; None: not yet."""

    submitted: float = 0.0
    started: float | None = None
    first_token: float | None = None

    def timing(self, now: float) -> Timing:
        """Return the length of the phases until `now`."""
        started = now if self.started is None else self.started
        first_token = now if self.first_token is None else self.first_token
        return Timing(
            queue_us=_microseconds(started - self.submitted),
            prefill_us=_microseconds(first_token - started),
            decode_us=_microseconds(now - first_token),
            time_to_first_token_us=_microseconds(first_token - self.submitted),
            total_us=_microseconds(now - self.submitted),
        )


_FOLLOWING = {
    State.QUEUED: frozenset({State.PREFILLING, State.ENDED}),
    State.PREFILLING: frozenset({State.DECODING, State.ENDED}),
    State.DECODING: frozenset({State.PAUSED, State.ENDED}),
    State.PAUSED: frozenset({State.DECODING, State.ENDED}),
    State.ENDED: frozenset[State](),
}

_log = logging.getLogger(__name__)


def _microseconds(seconds: float) -> int:
    return max(0, round(seconds * 1e6))
