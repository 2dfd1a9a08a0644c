"""What the engine tells a request's reader, in plain types.

Order: any number of `Waiting`, `Started`, any number of `PrefillProgress`, then for each sequence any number of
`TextDelta` and `ToolCallDelta` and one `SequenceFinished`, those of several sequences mixed, and `Completed`. A request
that fails ends with `Failed` instead, at any point of that order and with nothing after it.
"""

from dataclasses import dataclass
from enum import Enum


class FinishReason(Enum):
    """Why a sequence ended by itself."""

    EOS = "eos"
    STOP = "stop"
    MAX_TOKENS = "max_tokens"
    CONTEXT_LENGTH = "context_length"
    TOOL_CALL = "tool_call"
    CONSTRAINT_COMPLETE = "constraint_complete"


class Channel(Enum):
    """What a piece of output is."""

    CONTENT = "content"
    REASONING = "reasoning"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request: what its prompt holds and what was put out, the token that ended it included.

    Attributes:
        prompt_tokens: of the prompt, once, however many sequences there are.
        completion_tokens: of all sequences together.
        cached_prompt_tokens: of the prompt's, those whose keys and values came from an earlier request.
        drafted_tokens: guessed ahead.
        accepted_draft_tokens: of these, those that were right.
        reasoning_tokens: of the completion's, those of the reasoning, its closing mark included.
        forced_tokens: of the completion's, those that could be no other and so were not drawn.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_prompt_tokens: int = 0
    drafted_tokens: int = 0
    accepted_draft_tokens: int = 0
    reasoning_tokens: int = 0
    forced_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of one request in microseconds of a monotonic clock; 0 for a phase that it never reached."""

    queue_us: int = 0
    prefill_us: int = 0
    decode_us: int = 0
    time_to_first_token_us: int = 0
    total_us: int = 0


@dataclass(frozen=True, slots=True)
class Alternative:
    """A token that could have been drawn, with its log-probability."""

    id: int
    raw: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenDetail:
    """One sampled token: its id and the bytes that it adds to the text.

    Attributes:
        logprob: of the distribution after penalties and before any token was left out; None: not asked for.
        alternatives: the most probable tokens in that order, among which the sampled one may be.
    """

    id: int
    raw: bytes
    logprob: float | None = None
    alternatives: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True)
class Waiting:
    """The request waits for a slot, and so many sequences before its own."""

    place: int


@dataclass(frozen=True, slots=True)
class Started:
    """The prefill of the request begins."""

    prompt_tokens: int
    seed: int


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """So many tokens of the prompt have been computed."""

    processed_tokens: int
    total_tokens: int


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New output of one channel since its previous delta: whole code points.

    There may be none of them while a stop string or a mark can still follow, or a tool call is read. `token_count` adds
    up to the completion tokens of the usage, and in the reasoning to its reasoning tokens. `tokens` is empty unless the
    request asked for details.
    """

    text: str
    tokens: tuple[TokenDetail, ...] = ()
    token_count: int = 0
    sequence_index: int = 0
    channel: Channel = Channel.CONTENT


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A whole call of a tool; its tokens are counted by the deltas of text around it.

    Attributes:
        call_index: from 0 within its sequence.
        id: unique, and the same whenever this request is read.
        arguments_json: one JSON object.
    """

    call_index: int
    id: str
    name: str
    arguments_json: str
    sequence_index: int = 0


@dataclass(frozen=True, slots=True)
class SequenceFinished:
    """The sequence has all its output; at most one of the three matches is set."""

    reason: FinishReason
    stop_string: str | None = None
    stop_token_id: int | None = None
    eos_token_id: int | None = None
    sequence_index: int = 0


@dataclass(frozen=True, slots=True)
class Completed:
    """The request ended well; nothing follows."""

    usage: Usage
    timing: Timing


@dataclass(frozen=True, slots=True)
class Failed:
    """The request ended with an error; nothing follows. `usage` counts what was computed until then."""

    error: Exception
    usage: Usage


Event = Waiting | Started | PrefillProgress | TextDelta | ToolCallDelta | SequenceFinished | Completed | Failed
