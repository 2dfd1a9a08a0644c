"""What a text request asks for, and the state of one while it runs; plain Python."""

import hashlib
import logging
import secrets
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Protocol

from models.step import AdapterUse
from worker.detokenizer import Detokenizer
from worker.events import Alternative, FinishReason, SequenceFinished, TokenDetail
from worker.output import Delta, Output, OutputFormat

CALL_ID_DIGITS = 24
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

    Before `min_tokens` no token that would end it is drawn, and no stop string ends it; a constraint that is complete
    does all the same.
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
        namespace: only requests of an equal one share: the caller, its salt and the adapters.
    """

    is_bypassed: bool = False
    namespace: str = ""


class TokenNotAllowedError(RuntimeError):
    """Raised when a constraint is told of a token that it does not allow."""


class Constraint(Protocol):
    """What restricts the tokens of one sequence, such as a grammar.

    `advance` and `is_complete` belong to the engine's thread; `skip` and then `mask` are asked before each draw, beside
    it.
    """

    @property
    def is_complete(self) -> bool:
        """Whether nothing may follow: the sequence ends without a token that says so."""
        ...

    def advance(self, token_id: int) -> None:
        """Take the token that was drawn."""
        ...

    def skip(self) -> tuple[int, ...]:
        """Advance past the tokens that are the only ones allowed, and return them."""
        ...

    def mask(self) -> Any:
        """Return which tokens may come next; None: all may.

        A NumPy array, uint32 [ceil(V / 32)]: bit i % 32 of word i // 32 is set where token i may. Plain Python has no
        name for it.
        """
        ...


@dataclass(frozen=True, slots=True)
class TextRequest:
    """One text generation, checked and tokenized.

    Attributes:
        request_id: what people know it by; two callers, or one that tries again, may have chosen the same.
        key: what the engine knows it by.
        deadline: in seconds of the engine's clock; None: no deadline.
        priority: -128 (last) to 127 (first).
        prefill_progress: post an event after each chunk of the prompt.
        waiting_events: post an event when it waits for a slot, and when its place has changed.
        token_details: carry ids and bytes of the tokens in the deltas.
        top_logprobs: carry log-probabilities too: of each token that was drawn and of so many that could have been;
            None: no log-probabilities.
        num_sequences: outputs for the one prompt, each with a seed of its own.
        cache: what it shares with other requests.
        max_draft_tokens: guessed from what was said before and computed together; 0: none.
        form: how the output is read.
        make_constraint: makes what restricts the tokens of one of its sequences; None: nothing does.
        adapters: mounted ones that change the model for it, in the order in which they are added.
        adapter_names: what the caller calls them, in the same order.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingSettings
    stopping: StoppingSettings
    priority: int = 0
    deadline: float | None = None
    prefill_progress: bool = False
    waiting_events: bool = False
    token_details: bool = False
    top_logprobs: int | None = None
    num_sequences: int = 1
    cache: CacheUse = CacheUse()
    max_draft_tokens: int = 0
    form: OutputFormat = field(default_factory=OutputFormat)
    make_constraint: Callable[[], Constraint] | None = None
    adapters: tuple[AdapterUse, ...] = ()
    adapter_names: tuple[str, ...] = ()
    key: str = field(default_factory=lambda: secrets.token_hex(8))


def seed_of(seed: int, index: int) -> int:
    """Return the seed of one of a request's sequences: the request's own for the first."""
    return (seed + index * SEQUENCE_STRIDE) & SEED_MASK


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
    """What tokens did to their sequence: what its reader is told, in order, and whether it has ended."""

    events: tuple[Delta, ...]
    finished: SequenceFinished | None


class Sequence:
    """The state of one output of a text request that the device knows nothing of.

    Args:
        request: what was asked for.
        detokenizer: a fresh one: its output as text.
        max_context_tokens: prompt and output together.
        constraint: restricts the tokens; told of each that was drawn, and asked by whoever draws.
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
        num_forced: output tokens that the constraint left no choice about.
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
        self.num_forced = 0
        self._token_bytes = detokenizer.token_bytes
        self._output = Output(detokenizer, request.stopping.stop_strings, request.form, self._call_id, index)

    @property
    def request_id(self) -> str:
        """The id of its request."""
        return self.request.request_id

    @property
    def key(self) -> str:
        """What the engine knows its request by."""
        return self.request.key

    @property
    def num_reasoning(self) -> int:
        """How many of the output tokens are reasoning, its marks included."""
        return self._output.num_reasoning

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
        """Take the token that was drawn: text, stop conditions, and the constraint unless it has ended by them."""
        finished = self._read(drawn)
        if finished is None and self.constraint is not None:
            self.constraint.advance(drawn.token_id)
        return self._settle(finished or self._finish_by_constraint() or self._finish_by_limit())

    def force(self, token_ids: Items[int]) -> Advance:
        """Take tokens that its constraint has skipped, as if they had been drawn; those past its end are left out.

        Args:
            token_ids: what `Constraint.skip` returned, before the first draw and between two; there may be none.
        """
        finished = None
        for token_id in token_ids:
            finished = self._finish_by_limit() or self._read(Drawn(token_id))
            if finished is not None:
                return self._settle(finished)
            self.num_forced += 1
        return self._settle(self._finish_by_constraint() or self._finish_by_limit())

    def _read(self, drawn: Drawn) -> SequenceFinished | None:
        """Take a token's text, and return how it ends the sequence by itself."""
        stopping, token_id = self.request.stopping, drawn.token_id
        self.output_ids.append(token_id)
        may_stop = len(self.output_ids) >= stopping.min_tokens
        finished = self._finish_by_token(token_id) if may_stop else None
        is_text = finished is None or self._shows(finished)
        stop_string = self._output.add(token_id, self._detail(drawn), is_text=is_text, may_stop=may_stop)
        if stop_string is None:
            return finished
        if stopping.include_stop_in_output:
            self._output.append(stop_string)
        return SequenceFinished(FinishReason.STOP, stop_string=stop_string, sequence_index=self.index)

    def _settle(self, finished: SequenceFinished | None) -> Advance:
        """Say what has become of the tokens that were read; at the end, of all that was held back."""
        if finished is None:
            return Advance(self._output.take(), None)
        self._output.finish(is_stopped=finished.stop_string is not None)
        self._log_calls()
        is_by_itself = finished.reason in {FinishReason.EOS, FinishReason.CONSTRAINT_COMPLETE}
        if is_by_itself and self._output.num_calls:
            finished = replace(finished, reason=FinishReason.TOOL_CALL)
        return Advance(self._output.take(is_end=True), finished)

    def _log_calls(self) -> None:
        counts = {"malformed": self._output.num_malformed, "mismatched": self._output.num_mismatched}
        if any(counts.values()):
            facts = {"request_id": self.request_id, "sequence": self.index, "calls": self._output.num_calls, **counts}
            _log.warning("tool calls were not as declared", extra=facts)

    def _finish_by_token(self, token_id: int) -> SequenceFinished | None:
        if token_id in self.request.stopping.eos_token_ids:
            return SequenceFinished(FinishReason.EOS, eos_token_id=token_id, sequence_index=self.index)
        if token_id in self.request.stopping.stop_token_ids:
            return SequenceFinished(FinishReason.STOP, stop_token_id=token_id, sequence_index=self.index)
        return None

    def _shows(self, finished: SequenceFinished) -> bool:
        return finished.stop_token_id is not None and self.request.stopping.include_stop_in_output

    def _finish_by_constraint(self) -> SequenceFinished | None:
        if self.constraint is None or not self.constraint.is_complete:
            return None
        return SequenceFinished(FinishReason.CONSTRAINT_COMPLETE, sequence_index=self.index)

    def _finish_by_limit(self) -> SequenceFinished | None:
        if len(self.output_ids) < self.token_limit:
            return None
        is_own_limit = len(self.output_ids) >= self.request.stopping.max_tokens
        reason = FinishReason.MAX_TOKENS if is_own_limit else FinishReason.CONTEXT_LENGTH
        return SequenceFinished(reason, sequence_index=self.index)

    def _detail(self, drawn: Drawn) -> TokenDetail | None:
        if not self.request.token_details and self.request.top_logprobs is None:
            return None
        alternatives = tuple(Alternative(other, self._token_bytes(other), value) for other, value in drawn.alternatives)
        return TokenDetail(drawn.token_id, self._token_bytes(drawn.token_id), drawn.logprob, alternatives)

    def _call_id(self, number: int) -> str:
        """Return the id of a tool call, which nobody else's call has."""
        name = f"{self.key}/{self.index}/{number}".encode()
        return f"call_{hashlib.sha256(name).hexdigest()[:CALL_ID_DIGITS]}"


_FOLLOWING = {
    State.QUEUED: frozenset({State.PREFILLING, State.ENDED}),
    State.PREFILLING: frozenset({State.DECODING, State.ENDED}),
    State.DECODING: frozenset({State.PAUSED, State.ENDED}),
    State.PAUSED: frozenset({State.DECODING, State.ENDED}),
    State.ENDED: frozenset[State](),
}

_log = logging.getLogger(__name__)
