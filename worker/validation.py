"""Turns requests into plain types: every field is honoured, or refused by its name, within a bound.

Which variables the chat template reads is checked in `worker.chat`, once the template's own process has told them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from pomona.v1 import generation_pb2 as pb

from worker import wire
from worker.abilities import Abilities
from worker.adapters.wanted import WantedAdapter, read_adapters
from worker.chat import ChatPrompt, read_chat
from worker.envelope import Envelope, read_envelope
from worker.errors import ContextTooLong, InvalidField, UnsupportedOption
from worker.sequence import SamplingSettings
from worker.shortcuts import MAX_DRAFT_TOKENS, Shortcuts, read_shortcuts
from worker.steering import Steering, read_steering
from worker.tools import ToolUse

MAX_LOGIT_BIASES = 1024
MAX_LOGIT_BIAS = 1000.0
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_BYTES = 256
MAX_STOP_TOKEN_IDS = 64
MAX_TOP_LOGPROBS = 20
MAX_SEQUENCES = 16
MAX_COALESCE_TOKENS = 4096
MAX_COALESCE_S = 10.0

STOPPING = "spec.stopping"

# Inclusive; `top_p` and `repetition_penalty` may not be 0.
SAMPLING_RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "top_k": (0, 2**31 - 1),
    "min_p": (0.0, 1.0),
    "xtc_probability": (0.0, 1.0),
    "xtc_threshold": (0.0, 0.5),
    "repetition_penalty": (0.0, 100.0),
    "frequency_penalty": (-100.0, 100.0),
    "presence_penalty": (-100.0, 100.0),
}

# Fields that this build does not honour, by the message that they are in.
REFUSED: Mapping[str, frozenset[str]] = {
    "ContentPart": frozenset({"media"}),
    "OutputOptions": frozenset({"prompt_logprobs"}),
}


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a check has to know of the model.

    Attributes:
        vocab_size: token ids are below it.
        max_context_tokens: prompt and output together.
        sampling: the model's defaults, as its GetModel reports them.
        max_tokens: default limit of the output; None: what the context has room for.
        seed: default; None: any.
        max_sequences: that one request may ask for.
        max_draft_tokens: that the model guesses ahead at most; 0: it cannot.
        abilities: what it can do beside plain text.
    """

    vocab_size: int
    max_context_tokens: int
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    max_tokens: int | None = None
    seed: int | None = None
    max_sequences: int = MAX_SEQUENCES
    max_draft_tokens: int = MAX_DRAFT_TOKENS
    abilities: Abilities = field(default_factory=Abilities)


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A prompt to tokenize as it is, and where it is in the request."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """A prompt in tokens, and where it is in the request."""

    path: str
    ids: tuple[int, ...]


Prompt = ChatPrompt | TextPrompt | TokenPrompt


@dataclass(frozen=True, slots=True)
class Stopping:
    """When to stop; `max_tokens` None means when the context is full."""

    max_tokens: int | None = None
    min_tokens: int = 0
    stop_strings: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    include_stop_in_output: bool = False


@dataclass(frozen=True, slots=True)
class Streaming:
    """How often to tell the reader; 0 means each token."""

    coalesce_tokens: int = 0
    coalesce_interval_s: float = 0.0
    prefill_progress: bool = False
    waiting_events: bool = False


@dataclass(frozen=True, slots=True)
class Generation:
    """A checked request for text.

    Attributes:
        seed: None: any.
        num_sequences: outputs for the one prompt.
        token_details: whether the answer has the tokens beside the text; always with log-probabilities.
        top_logprobs: how many alternatives of each token have theirs told beside its own; None: none, nor its own.
        steering: what leads the output.
        adapters: what changes the model for it, in order.
    """

    envelope: Envelope
    prompt: Prompt
    sampling: SamplingSettings
    seed: int | None
    num_sequences: int
    stopping: Stopping
    token_details: bool
    top_logprobs: int | None
    shortcuts: Shortcuts
    streaming: Streaming
    steering: Steering
    adapters: tuple[WantedAdapter, ...] = ()


@dataclass(frozen=True, slots=True)
class Count:
    """A checked request to count tokens."""

    envelope: Envelope
    prompt: ChatPrompt | TextPrompt
    return_token_ids: bool
    adapters: tuple[WantedAdapter, ...] = ()


def read_generation(
    body: bytes, kind: type[pb.GenerateRequest | pb.StreamGenerateRequest], model: ModelFacts
) -> Generation:
    """Parse and check a request for text.

    Args:
        body: as it came.
        kind: which of the two methods was called.
        model: what bounds and defaults hang on.

    Raises:
        RequestError: its subclasses name what is wrong, and the field.
    """
    message = wire.parse(body, kind)
    _refuse_unbuilt(message)
    spec = message.spec
    streaming = Streaming() if isinstance(message, pb.GenerateRequest) else _read_streaming(message.stream_options)
    top_logprobs = _read_top_logprobs(spec.output)
    prompt = _read_prompt(spec, model)
    return Generation(
        envelope=read_envelope(message),
        prompt=prompt,
        sampling=_read_sampling(spec.sampling, model),
        seed=spec.sampling.seed if spec.sampling.HasField("seed") else model.seed,
        num_sequences=_read_num_sequences(spec.sampling, model),
        stopping=_read_stopping(spec.stopping, model),
        token_details=spec.output.token_ids or top_logprobs is not None,
        top_logprobs=top_logprobs,
        shortcuts=read_shortcuts(spec, model.max_draft_tokens),
        streaming=streaming,
        steering=read_steering(spec, prompt.tools if isinstance(prompt, ChatPrompt) else ToolUse(), model.abilities),
        adapters=read_adapters(message.adapters),
    )


def read_count(body: bytes) -> Count:
    """Parse and check a request to count tokens.

    Raises:
        RequestError: its subclasses name what is wrong, and the field.
    """
    message = wire.parse(body, pb.CountTokensRequest)
    _refuse_unbuilt(message)
    match message.WhichOneof("input"):
        case "chat":
            prompt = read_chat(message.chat, "chat")
        case "prompt":
            prompt = _read_text(message.prompt, "prompt")
        case _:
            raise InvalidField("input", "give chat or prompt")
    return Count(read_envelope(message), prompt, message.return_token_ids, read_adapters(message.adapters))


def check_context(prompt_tokens: int, model: ModelFacts, path: str) -> None:
    """Refuse a prompt that leaves no room for one token of output.

    Raises:
        ContextTooLong: it does.
    """
    if prompt_tokens >= model.max_context_tokens:
        raise ContextTooLong(prompt_tokens, model.max_context_tokens, path)


def check_min_tokens(prompt_tokens: int, stopping: Stopping, model: ModelFacts) -> None:
    """Refuse to promise more tokens of output than the prompt leaves room for.

    Raises:
        InvalidField: `min_tokens` is above that.
    """
    room = model.max_context_tokens - prompt_tokens
    if stopping.min_tokens > room:
        raise InvalidField(f"{STOPPING}.min_tokens", f"the prompt leaves room for {room} tokens")


def _refuse_unbuilt(message: Message, prefix: str = "") -> None:
    refused = REFUSED.get(message.DESCRIPTOR.name, frozenset())
    for each, _ in message.ListFields():
        if each.name in refused:
            raise UnsupportedOption(f"{prefix}{each.name}")
    for path, value in wire.messages_in(message, prefix):
        _refuse_unbuilt(value, f"{path}.")


def _read_prompt(spec: pb.GenerationSpec, model: ModelFacts) -> Prompt:
    match spec.WhichOneof("input"):
        case "chat":
            return read_chat(spec.chat, "spec.chat")
        case "prompt":
            return _read_text(spec.prompt, "spec.prompt")
        case "token_ids":
            return _read_token_ids(spec.token_ids.ids, model)
        case _:
            raise InvalidField("spec", "give chat, prompt or token_ids")


def _read_text(text: str, path: str) -> TextPrompt:
    if not text:
        raise InvalidField(path, "the prompt is empty")
    return TextPrompt(path, text)


def _read_token_ids(ids: Sequence[int], model: ModelFacts) -> TokenPrompt:
    path = "spec.token_ids.ids"
    if not ids:
        raise InvalidField(path, "the prompt is empty")
    check_context(len(ids), model, path)
    _check_ids(ids, path, model)
    return TokenPrompt(path, tuple(ids))


def _read_sampling(message: pb.SamplingParams, model: ModelFacts) -> SamplingSettings:
    given: dict[str, Any] = {each.name: value for each, value in message.ListFields()}
    _check_sampling(given)
    settings = {name: given[name] for name in (*SAMPLING_RANGES, "penalty_window") if name in given}
    biases = _read_logit_bias(message.logit_bias, model)
    return replace(model.sampling, **settings, **({"logit_bias": biases} if biases else {}))


def _check_sampling(given: Mapping[str, Any]) -> None:
    path = "spec.sampling"
    for name, (low, high) in SAMPLING_RANGES.items():
        # Written so that a NaN is outside.
        if name in given and not low <= given[name] <= high:
            raise InvalidField(f"{path}.{name}", f"from {low:.15g} to {high:.15g}")
    for name in ("top_p", "repetition_penalty"):
        if given.get(name) == 0:
            raise InvalidField(f"{path}.{name}", "above 0")


def _read_num_sequences(message: pb.SamplingParams, model: ModelFacts) -> int:
    num_sequences = message.num_sequences if message.HasField("num_sequences") else 1
    most = min(MAX_SEQUENCES, model.max_sequences)
    if not 1 <= num_sequences <= most:
        raise InvalidField("spec.sampling.num_sequences", f"from 1 to {most}")
    return num_sequences


def _read_top_logprobs(message: pb.OutputOptions) -> int | None:
    if message.top_logprobs > MAX_TOP_LOGPROBS:
        raise InvalidField("spec.output.top_logprobs", f"from 0 to {MAX_TOP_LOGPROBS}")
    return message.top_logprobs if message.HasField("top_logprobs") else None


def _read_logit_bias(biases: Mapping[int, float], model: ModelFacts) -> dict[int, float]:
    path = "spec.sampling.logit_bias"
    if len(biases) > MAX_LOGIT_BIASES:
        raise InvalidField(path, f"at most {MAX_LOGIT_BIASES} entries")
    for token_id, bias in biases.items():
        if token_id >= model.vocab_size:
            raise InvalidField(f"{path}[{token_id}]", f"token ids are below {model.vocab_size}")
        if not -MAX_LOGIT_BIAS <= bias <= MAX_LOGIT_BIAS:
            raise InvalidField(f"{path}[{token_id}]", f"from {-MAX_LOGIT_BIAS:g} to {MAX_LOGIT_BIAS:g}")
    return dict(biases)


def _read_stopping(message: pb.StoppingParams, model: ModelFacts) -> Stopping:
    max_tokens = message.max_tokens if message.HasField("max_tokens") else model.max_tokens
    _check_lengths(message, max_tokens)
    if len(message.stop_strings) > MAX_STOP_STRINGS:
        raise InvalidField(f"{STOPPING}.stop_strings", f"at most {MAX_STOP_STRINGS} strings")
    for index, text in enumerate(message.stop_strings):
        if not 1 <= len(text.encode()) <= MAX_STOP_STRING_BYTES:
            raise InvalidField(f"{STOPPING}.stop_strings[{index}]", f"1 to {MAX_STOP_STRING_BYTES} bytes")
    if len(message.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidField(f"{STOPPING}.stop_token_ids", f"at most {MAX_STOP_TOKEN_IDS} ids")
    _check_ids(message.stop_token_ids, f"{STOPPING}.stop_token_ids", model)
    return Stopping(
        max_tokens=max_tokens,
        min_tokens=message.min_tokens,
        stop_strings=tuple(message.stop_strings),
        stop_token_ids=frozenset(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
        include_stop_in_output=message.include_stop_in_output,
    )


def _check_lengths(message: pb.StoppingParams, max_tokens: int | None) -> None:
    if max_tokens == 0:
        raise InvalidField(f"{STOPPING}.max_tokens", "at least 1")
    if max_tokens is not None and message.min_tokens > max_tokens:
        raise InvalidField(f"{STOPPING}.min_tokens", f"at most max_tokens, which is {max_tokens}")


def _read_streaming(message: pb.StreamOptions) -> Streaming:
    if message.coalesce_tokens > MAX_COALESCE_TOKENS:
        raise InvalidField("stream_options.coalesce_tokens", f"at most {MAX_COALESCE_TOKENS}")
    interval_s = _seconds(message.coalesce_interval)
    if not 0 <= interval_s <= MAX_COALESCE_S:
        raise InvalidField("stream_options.coalesce_interval", f"from 0 to {MAX_COALESCE_S:g} s")
    return Streaming(message.coalesce_tokens, interval_s, message.prefill_progress, message.waiting_events)


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9


def _check_ids(ids: Iterable[int], path: str, model: ModelFacts) -> None:
    for index, token_id in enumerate(ids):
        if token_id >= model.vocab_size:
            raise InvalidField(f"{path}[{index}]", f"token ids are below {model.vocab_size}")
