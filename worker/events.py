"""What the engine tells a request's reader, in plain types.

Order: any number of `Waiting`, `Started`, any number of `PrefillProgress`, then for each sequence any number of
`TextDelta` and `ToolCallDelta` and one `SequenceFinished`, those of several sequences mixed, and `Completed`. A request
that fails ends with `Failed` instead, at any point of that order and with nothing after it.

Of speech: `Started`, any number of the events of `SpeechEvent` mixed, and `Completed`.

Of vectors and rankings: `Started`, one `Embedded` or `Scored` for each input as it is done, and `Completed`.
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
        audio_s: seconds of audio that a request for speech brought.
        speech_s: of these, those in which somebody speaks; None: nobody looked.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_prompt_tokens: int = 0
    drafted_tokens: int = 0
    accepted_draft_tokens: int = 0
    reasoning_tokens: int = 0
    forced_tokens: int = 0
    audio_s: float = 0.0
    speech_s: float | None = None


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


class SegmentEnd(Enum):
    """What ended a segment."""

    SILENCE = "silence"
    MAX_LENGTH = "max_length"
    CLIENT_FINALIZED = "client_finalized"
    END_OF_AUDIO = "end_of_audio"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """A word with the space before it, and when it was said: seconds of the request's clock."""

    text: str
    start_s: float
    end_s: float
    probability: float | None = None


@dataclass(frozen=True, slots=True)
class SpeechSegment:
    """A stretch of speech as it is known now.

    An id comes any number of times with `is_final` false, each replacing the one before, then once with true.

    Attributes:
        start_s: seconds of the request's clock; of one channel, never before the end of the segment before.
        stable_text: will not change any more; all the text of a final segment. Joined, those of final segments are the
            text of the whole.
        unstable_text: may change; none in a final segment.
        words: of both texts; none unless asked for.
        language: a code of the model.
        avg_logprob: this and the next three are of the window that the segment was heard in.
        alternatives: other texts of that window, likeliest first, with their `avg_logprob`.
        end: what ended it; None while it is not final.
    """

    segment_id: int
    start_s: float
    end_s: float
    stable_text: str
    unstable_text: str = ""
    is_final: bool = True
    revision: int = 0
    words: tuple[SpokenWord, ...] = ()
    language: str = ""
    channel: int = 0
    avg_logprob: float | None = None
    no_speech_prob: float | None = None
    compression_ratio: float | None = None
    temperature: float | None = None
    alternatives: tuple[tuple[str, float], ...] = ()
    end: SegmentEnd | None = None


@dataclass(frozen=True, slots=True)
class VoiceChange:
    """Somebody began or ceased to speak, `offset_s` seconds of the request's clock from its start."""

    is_speech: bool
    offset_s: float


@dataclass(frozen=True, slots=True)
class LanguageFound:
    """The language of the request was found; comes once at most."""

    language: str
    probability: float


@dataclass(frozen=True, slots=True)
class SpeechProgress:
    """How many seconds of audio came, and how many are done; `lag_s` only while live."""

    received_s: float
    processed_s: float
    lag_s: float | None = None


@dataclass(frozen=True, slots=True)
class EndingSoon:
    """The worker is about to end: what is not done after `remaining_s` fails."""

    remaining_s: float


@dataclass(frozen=True, slots=True)
class Embedded:
    """The vectors of one input of a request, as they are sent: little-endian, one behind the other."""

    index: int
    num_vectors: int
    values: bytes


@dataclass(frozen=True, slots=True)
class Scored:
    """The logits at the end of one input of a request: of the token that says yes, and of the one that says no."""

    index: int
    yes: float
    no: float


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


SpeechEvent = SpeechSegment | VoiceChange | LanguageFound | SpeechProgress
Event = (
    Waiting
    | Started
    | PrefillProgress
    | TextDelta
    | ToolCallDelta
    | SequenceFinished
    | SpeechEvent
    | EndingSoon
    | Embedded
    | Scored
    | Completed
    | Failed
)
