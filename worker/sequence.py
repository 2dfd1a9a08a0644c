"""What a text request asks for, and the state of one while it runs; plain Python."""

import logging
import secrets
from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from worker.detokenizer import Detokenizer
from worker.events import Alternative, FinishReason, SequenceFinished, TextDelta, Timing, TokenDetail
from worker.stops import StopMatcher, Stopped

SEQUENCE_STRIDE = 0xD1B54A32D192ED03
SEED_MASK = (1 << 64) - 1


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
        xtc_probability: how often a draw leaves out its most probable tokens; 0 never.
        xtc_threshold: those with a higher probability, except the least probable of them.
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
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    seed: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float])


@dataclass(frozen=True, slots=True)
class StoppingSettings:
    """When a sequence ends. A request that ignores the end of sequence has no `eos_token_ids`.

    Before `min_tokens` no token that would end it is drawn, and no stop string ends it.
    """

    max_tokens: int
    min_tokens: int = 0
    stop_strings: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    eos_token_ids: frozenset[int] = frozenset()
    include_stop_in_output: bool = False


@dataclass(frozen=True, slots=True)
class CacheUse:
    """What a request may share of earlier prompts' keys and values.

    Attributes:
        is_bypassed: it neither reads nor adds any.
        namespace: only requests of an equal one share: the caller and its salt.
    """

    is_bypassed: bool = False
    namespace: str = ""


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
        top_logprobs: carry log-probabilities too: of each token that was drawn and of so many that could have been;
            None: no log-probabilities.
        num_sequences: outputs for the one prompt, each with a seed of its own.
        cache: what it shares with other requests.
        max_draft_tokens: guessed from what was said before and computed together; 0: none.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingSettings
    stopping: StoppingSettings
    priority: int = 0
    deadline: float | None = None
    prefill_progress: bool = False
    token_details: bool = False
    top_logprobs: int | None = None
    num_sequences: int = 1
    cache: CacheUse = CacheUse()
    max_draft_tokens: int = 0
    key: str = field(default_factory=lambda: secrets.token_hex(8))


def seed_of(seed: int, index: int) -> int:
    """Return the seed of one of a request's sequences: the request's own for the first."""
    return (seed + index * SEQUENCE_STRIDE) & SEED_MASK


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
class Drawn:
    """A token that was drawn for a sequence.

    Attributes:
        token_id: which.
        logprob: of the distribution that it was drawn from, before any token was left out; None: not asked for.
        alternatives: the most probable tokens and theirs, in that order.
    """

    token_id: int
    logprob: float | None = None
    alternatives: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Advance:
    """What one token did to its sequence."""

    delta: TextDelta | None
    finished: SequenceFinished | None


class Sequence:
    """The state of one output of a text request that the device knows nothing of.

    Args:
        request: what was asked for.
        detokenizer: a fresh one: its output as text.
        max_context_tokens: prompt and output together.
        constraint: restricts the tokens; `mask` is asked before each draw, `advance` told after it.
        index: which of the request's outputs it is.
        leader: the first of them, whose prompt this one shares once it is computed; None: it is the first.

    Attributes:
        state: where it is.
        slot: the cache slot it holds; None before it runs.
        prefilled: prompt tokens that the cache holds.
        output_ids: the tokens that were read so far; one more may be on the device.
        token_limit: the number of output tokens after which it ends in any case.
        num_drafted: tokens that were guessed ahead.
        num_accepted: of these, those that were right.
    """

    def __init__(
        self,
        request: TextRequest,
        detokenizer: Detokenizer,
        max_context_tokens: int,
        *,
        constraint: Constraint | None = None,
        index: int = 0,
        leader: "Sequence | None" = None,
    ) -> None:
        self.request = request
        self.constraint = constraint
        self.index = index
        self.leader = leader
        self.state = State.QUEUED
        self.slot: int | None = None
        self.prefilled = 0
        self.output_ids: list[int] = []
        self.token_limit = min(request.stopping.max_tokens, max_context_tokens - len(request.prompt_ids))
        self.num_drafted = 0
        self.num_accepted = 0
        self._detokenizer = detokenizer
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
    def max_tokens(self) -> int:
        """How many tokens of prompt and output it can come to."""
        return len(self.request.prompt_ids) + self.token_limit

    @property
    def is_prefilled(self) -> bool:
        """Whether its whole prompt is computed."""
        return self.prefilled == len(self.request.prompt_ids)

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

    def advance(self, drawn: Drawn) -> Advance:
        """Take the token that was drawn: text and stop conditions. The constraint is for whoever draws."""
        token_id = drawn.token_id
        self.output_ids.append(token_id)
        self._unsent_tokens += 1
        may_stop = len(self.output_ids) >= self.request.stopping.min_tokens
        finished = self._finish_by_token(token_id) if may_stop else None
        is_text = finished is None or self._shows(finished)
        found = self._stops.add(self._detokenizer.add(token_id) if is_text else "", may_stop=may_stop)
        if isinstance(found, Stopped):
            text = found.text + (found.stop_string if self.request.stopping.include_stop_in_output else "")
            finished = SequenceFinished(FinishReason.STOP, stop_string=found.stop_string, sequence_index=self.index)
        else:
            finished = finished or self._finish_by_limit()
            text = found if finished is None else found + self._rest()
        return Advance(self._delta(drawn, text, is_end=finished is not None), finished)

    def _finish_by_token(self, token_id: int) -> SequenceFinished | None:
        if token_id in self.request.stopping.eos_token_ids:
            return SequenceFinished(FinishReason.EOS, eos_token_id=token_id, sequence_index=self.index)
        if token_id in self.request.stopping.stop_token_ids:
            return SequenceFinished(FinishReason.STOP, stop_token_id=token_id, sequence_index=self.index)
        return None

    def _shows(self, finished: SequenceFinished) -> bool:
        return finished.stop_token_id is not None and self.request.stopping.include_stop_in_output

    def _finish_by_limit(self) -> SequenceFinished | None:
        if len(self.output_ids) < self.token_limit:
            return None
        is_own_limit = len(self.output_ids) >= self.request.stopping.max_tokens
        reason = FinishReason.MAX_TOKENS if is_own_limit else FinishReason.CONTEXT_LENGTH
        return SequenceFinished(reason, sequence_index=self.index)

    def _rest(self) -> str:
        tail = self._stops.add(self._detokenizer.finish())
        return tail.text if isinstance(tail, Stopped) else tail + self._stops.finish()

    def _delta(self, drawn: Drawn, text: str, *, is_end: bool) -> TextDelta | None:
        details: tuple[TokenDetail, ...] = ()
        if self.request.token_details or self.request.top_logprobs is not None:
            alternatives = tuple(
                Alternative(other, self._detokenizer.token_bytes(other), value) for other, value in drawn.alternatives
            )
            raw = self._detokenizer.token_bytes(drawn.token_id)
            details = (TokenDetail(drawn.token_id, raw, drawn.logprob, alternatives),)
        if not (text or details or is_end):
            return None
        token_count, self._unsent_tokens = self._unsent_tokens, 0
        return TextDelta(text, details, token_count, self.index)


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
