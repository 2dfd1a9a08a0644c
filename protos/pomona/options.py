"""What calls may be told beside their input: the fields of the contract, by their own names.

An option that is not given is not sent, so that the model's default counts. A test holds these names equal to the
contract's.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from pomona.v1 import common_pb2, generation_pb2

Adapter = str | tuple[str, float] | common_pb2.AdapterUse
Tool = Mapping[str, Any] | generation_pb2.ToolSpec


class CallOptions(TypedDict, total=False):
    """Options of every call to a model.

    `timeout_s` is the deadline in seconds; unset: the client's. `adapters` are names, each alone or with a scale.
    `priority` is from -128 (last) to 127.
    """

    timeout_s: float
    request_id: str
    adapters: Sequence[Adapter]
    priority: int


class GenerateOptions(CallOptions, total=False):
    """Options of an answer: sampling, ends, constraint, output, cache, guessing ahead and the stream.

    At most one constraint (`json_schema`, `regex`, `lark_grammar`, `choices`, `json_object`). `speculation` is the
    contract's `speculation.enabled`; `coalesce_interval_s` is in seconds.
    """

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    xtc_probability: float
    xtc_threshold: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    penalty_window: int
    seed: int
    logit_bias: Mapping[int, float]
    num_sequences: int
    max_tokens: int
    min_tokens: int
    stop_strings: Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    include_stop_in_output: bool
    max_reasoning_tokens: int
    json_schema: str | Mapping[str, Any]
    regex: str
    lark_grammar: str
    choices: Sequence[str]
    json_object: bool
    top_logprobs: int
    prompt_logprobs: bool
    token_ids: bool
    bypass_prefix_cache: bool
    cache_salt: str
    speculation: bool
    max_draft_tokens: int
    coalesce_tokens: int
    coalesce_interval_s: float
    prefill_progress: bool
    waiting_events: bool


class ChatOptions(GenerateOptions, total=False):
    """Options of an answer to a conversation.

    A tool is a `ToolSpec`, or a mapping with `name`, `description` and `parameters` (a JSON schema). `tool_choice` is
    "auto", "none", "required" or the name of a tool. `template_vars` are variables of the model's chat template.
    """

    tools: Sequence[Tool]
    tool_choice: str
    enable_thinking: bool
    template_vars: Mapping[str, Any]
    continue_final_message: bool


class EmbedOptions(CallOptions, total=False):
    """Options of vectors; `task_type` and `truncation` by the contract's names without prefix ("retrieval_query")."""

    task_type: str
    instruction: str
    dimensions: int
    normalize: bool
    truncation: str


class RerankOptions(CallOptions, total=False):
    """Options of a ranking; `top_n` 0 is all."""

    top_n: int
    truncation: str
    instruction: str


class TranscribeOptions(CallOptions, total=False):
    """Options of a transcript.

    `pcm` says that the audio is raw: encoding ("s16_le", "f32_le", "mulaw", "alaw"), samples a second, channels.
    `clips` are stretches from and to, in seconds. `live` is for a microphone: lowest delay; then `interim_results`
    sends text that may still change. Times end in `_s` and are in seconds.
    """

    pcm: tuple[str, int, int]
    languages: Sequence[str]
    task: str
    word_timestamps: bool
    initial_prompt: str
    phrases: Sequence[str]
    temperature: float
    beam_size: int
    best_of: int
    patience: float
    length_penalty: float
    condition_on_previous_text: bool
    compression_ratio_threshold: float
    avg_logprob_threshold: float
    no_speech_threshold: float
    voice_activity_filter: bool
    clips: Sequence[tuple[float, float]]
    max_alternatives: int
    live: bool
    interim_results: bool
    voice_activity_events: bool
    utterance_end_silence_s: float
    idle_timeout_s: float
    interim_interval_s: float
    time_offset_s: float
    first_segment_id: int
