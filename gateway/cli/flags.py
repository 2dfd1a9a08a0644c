"""Which option sets which field of a request: what a server finds wrong is told by the name that was typed."""

import re

FLAGS = {
    "adapters": "--adapter",
    "avg_logprob_threshold": "--logprob-threshold",
    "beam_size": "--beam",
    "best_of": "--best-of",
    "bypass_prefix_cache": "--no-prefix-cache",
    "channel_mode": "--channels",
    "choices": "--choices",
    "clips": "--clips",
    "compression_ratio_threshold": "--compression-ratio-threshold",
    "condition_on_previous_text": "--condition",
    "context_tokens": "--context-tokens",
    "dimensions": "--dimensions",
    "enable_thinking": "--thinking",
    "expert_budget_bytes": "--expert-budget",
    "experts_mode": "--experts",
    "frequency_penalty": "--frequency-penalty",
    "grace": "--grace",
    "idle_timeout": "--idle-timeout",
    "ignore_eos": "--ignore-eos",
    "include_stop_in_output": "--include-stop",
    "initial_prompt": "--prompt",
    "instruction": "--instruction",
    "interim_interval": "--interim-interval",
    "json_object": "--json-object",
    "json_schema": "--schema",
    "kv_scheme": "--kv-scheme",
    "languages": "--language",
    "lark_grammar": "--grammar",
    "length_penalty": "--length-penalty",
    "logit_bias": "--logit-bias",
    "max_alternatives": "--alternatives",
    "max_batch_rows": "--max-batch-rows",
    "max_draft_tokens": "--speculate",
    "max_reasoning_tokens": "--max-reasoning-tokens",
    "max_tokens": "--max-tokens",
    "min_p": "--min-p",
    "min_tokens": "--min-tokens",
    "no_speech_threshold": "--no-speech-threshold",
    "normalize": "--normalize",
    "num_sequences": "--sequences",
    "patience": "--patience",
    "pcm": "--pcm",
    "penalty_window": "--penalty-window",
    "phrases": "--phrase",
    "presence_penalty": "--presence-penalty",
    "regex": "--regex",
    "repetition_penalty": "--repetition-penalty",
    "seed": "--seed",
    "stop_strings": "--stop",
    "stop_token_ids": "--stop-id",
    "task": "--translate",
    "task_type": "--task",
    "temperature": "--temperature",
    "tool_choice": "--tool-choice",
    "tools": "--tools",
    "top_k": "--top-k",
    "top_logprobs": "--logprobs",
    "top_n": "--top",
    "top_p": "--top-p",
    "truncation": "--truncate",
    "utterance_end_silence": "--silence",
    "voice_activity_filter": "--voice-filter",
    "word_timestamps": "--words",
    "xtc_probability": "--xtc-probability",
    "xtc_threshold": "--xtc-threshold",
}
_INDEX = re.compile(r"\[[^\]]*\]")


def flag_of(path: str) -> str:
    """Return the option that sets the field at `path`, or one that the field is part of; without any, the path."""
    names = _INDEX.sub("", path).split(".")
    return next((FLAGS[name] for name in reversed(names) if name in FLAGS), path)


def told_by_flag(message: str, path: str) -> str:
    """Return `message` with the option in the place where the field at `path` is named first."""
    flag = flag_of(path)
    return re.sub(rf"(?<![\w.]){re.escape(path)}(?![\w.\[])", lambda _: flag, message, count=1) if path else message
