"""Requests made of plain values, and options by the contract's own names."""

import json
from typing import Any, cast, get_type_hints

import pytest
from google.protobuf.message import Message
from pomona import options, requests
from pomona.v1 import common_pb2, embedding_pb2
from pomona.v1 import generation_pb2 as g
from pomona.v1 import transcription_pb2 as t

CALL = {"timeout_s", "request_id", "adapters", "priority"}


def fields(*kinds: type[Message]) -> set[str]:
    return {name for kind in kinds for name in kind.DESCRIPTOR.fields_by_name}


def test_generation_has_every_option_of_the_contract() -> None:
    parts = fields(
        g.SamplingParams, g.StoppingParams, g.Constraint, g.OutputOptions, g.CacheOptions, g.SpeculationOptions
    )
    renamed = {"enabled": "speculation", "coalesce_interval": "coalesce_interval_s"}
    wanted = {renamed.get(name, name) for name in parts | fields(g.StreamOptions)} | CALL
    assert set(get_type_hints(options.GenerateOptions)) == wanted
    chat = fields(g.ChatInput) - {"messages"}
    assert set(get_type_hints(options.ChatOptions)) == wanted | chat


def test_vectors_and_rankings_have_every_option_but_what_is_fixed_here() -> None:
    fixed = {"pooling", "vector_type"}
    assert set(get_type_hints(options.EmbedOptions)) == (fields(embedding_pb2.EmbedOptions) - fixed) | CALL
    input_fields = {"model", "query", "documents"}
    assert set(get_type_hints(options.RerankOptions)) == (fields(embedding_pb2.RerankRequest) - input_fields) | CALL


def test_transcripts_have_every_option_of_the_contract() -> None:
    durations = {"utterance_end_silence", "idle_timeout", "interim_interval", "time_offset"}
    stream = fields(t.StreamTranscriptionConfig) - {"transcription", "mode"}
    wanted = {f"{name}_s" if name in durations else name for name in stream}
    wanted |= (fields(t.TranscriptionConfig) - {"format"}) | {"pcm", "live"} | CALL
    assert set(get_type_hints(options.TranscribeOptions)) == wanted


def test_options_go_where_the_contract_has_them() -> None:
    request = requests.generation(
        "m",
        "x",
        {
            "temperature": 0,
            "logit_bias": {5: -1.0},
            "stop_strings": ["\n"],
            "top_logprobs": 0,
            "cache_salt": "s",
            "speculation": False,
            "max_draft_tokens": 3,
            "coalesce_interval_s": 0.25,
            "priority": -3,
            "request_id": "r",
            "adapters": ["a", ("b", 0.5), common_pb2.AdapterUse(adapter="c")],
        },
    )
    spec = request.spec
    assert (spec.sampling.HasField("temperature"), spec.sampling.HasField("top_p")) == (True, False)
    assert dict(spec.sampling.logit_bias) == {5: -1.0}
    assert (list(spec.stopping.stop_strings), spec.output.HasField("top_logprobs")) == (["\n"], True)
    assert spec.cache.cache_salt == "s"
    assert (spec.speculation.HasField("enabled"), spec.speculation.max_draft_tokens) == (True, 3)
    assert request.stream_options.coalesce_interval.ToMilliseconds() == 250
    assert (request.priority, request.request_id) == (-3, "r")
    assert [(use.adapter, use.HasField("scale")) for use in request.adapters] == [
        ("a", False),
        ("b", True),
        ("c", False),
    ]


def test_nothing_is_sent_that_was_not_given() -> None:
    assert requests.generation("m", "x", {}) == g.StreamGenerateRequest(model="m", spec=g.GenerationSpec(prompt="x"))


def test_a_prompt_may_be_token_ids() -> None:
    assert requests.generation("m", [1, 2], {}).spec.token_ids.ids == [1, 2]


@pytest.mark.parametrize(
    ("given", "kind", "value"),
    [
        ({"json_schema": {"type": "object"}}, "json_schema", '{"type": "object"}'),
        ({"json_schema": "{}"}, "json_schema", "{}"),
        ({"regex": "a+"}, "regex", "a+"),
        ({"choices": ["a", "b"]}, "choices", g.StringChoices(choices=["a", "b"])),
        ({"json_object": True}, "json_object", g.JsonObject()),
        ({"json_object": False}, None, None),
    ],
)
def test_a_constraint_is_one_of_its_kinds(given: Any, kind: str | None, value: object) -> None:
    constraint = requests.generation("m", "x", given).spec.constraint
    assert constraint.WhichOneof("kind") == kind
    assert kind is None or getattr(constraint, kind) == value


def test_two_constraints_and_unknown_options_are_refused() -> None:
    with pytest.raises(ValueError, match="at most one constraint, not json_schema and regex"):
        requests.generation("m", "x", {"regex": "a", "json_schema": "{}"})
    unknown: Any = {"max_token": 3}
    for make in (requests.generation, requests.chat):
        with pytest.raises(TypeError, match="max_token"):
            make("m", "x", unknown)
    with pytest.raises(TypeError, match="max_token"):
        requests.embedding("m", ["x"], unknown)
    with pytest.raises(TypeError, match="max_token"):
        requests.ranking("m", "q", ["x"], unknown)
    with pytest.raises(TypeError, match="max_token"):
        requests.transcription("m", unknown)


def test_a_conversation_with_tools() -> None:
    call = g.ToolCall(id="c1", name="weather", arguments_json="{}")
    request = requests.chat(
        "m",
        [
            {"role": "system", "text": "Be brief."},
            g.ChatMessage(role=g.ROLE_USER, text="Weather?"),
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "text": "Rain."},
        ],
        {
            "tools": [{"name": "weather", "description": "d", "parameters": {"type": "object"}}, g.ToolSpec(name="t")],
            "tool_choice": "weather",
            "enable_thinking": False,
            "template_vars": {"a": None, "b": True, "c": 1, "d": "x", "e": {"f": [1]}, "g": [2]},
            "max_tokens": 3,
        },
    )
    chat = request.spec.chat
    assert [message.role for message in chat.messages] == [g.ROLE_SYSTEM, g.ROLE_USER, g.ROLE_ASSISTANT, g.ROLE_TOOL]
    assert chat.messages[2].tool_calls == [call]
    assert json.loads(chat.tools[0].parameters_json_schema) == {"type": "object"}
    assert (chat.tool_choice.mode, chat.tool_choice.name) == (g.ToolChoice.MODE_NAMED, "weather")
    assert chat.HasField("enable_thinking")
    kinds = {name: value.WhichOneof("kind") for name, value in chat.template_vars.items()}
    assert kinds == {
        "a": "null_value",
        "b": "bool_value",
        "c": "number_value",
        "d": "string_value",
        "e": "struct_value",
        "g": "list_value",
    }
    assert request.spec.stopping.max_tokens == 3
    assert requests.chat("m", "x", {"tool_choice": "none"}).spec.chat.tool_choice.mode == g.ToolChoice.MODE_NONE


def test_words_that_mean_nothing_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="role is one of system, user, assistant, tool, not 'robot'"):
        requests.chat("m", [{"role": "robot", "text": "x"}], {})
    with pytest.raises(ValueError, match="a message has no content"):
        requests.chat("m", [{"role": "user", "content": "x"}], {})
    with pytest.raises(ValueError, match="truncation is one of error, right, left"):
        requests.embedding("m", ["x"], {"truncation": "middle"})


def test_a_number_out_of_its_range_and_a_wrong_type_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="max_tokens: "):
        requests.chat("m", "x", {"max_tokens": -4})
    with pytest.raises(TypeError, match="temperature: "):
        requests.chat("m", "x", cast("Any", {"temperature": "warm"}))


def test_a_transcript_of_raw_audio_in_parts() -> None:
    request = requests.transcription(
        "w",
        {
            "pcm": ("s16_le", 16_000, 2),
            "clips": [(1.5, 3)],
            "live": True,
            "task": "transcribe",
            "interim_results": True,
            "idle_timeout_s": 2.5,
            "temperature": 0,
            "timeout_s": 5,
        },
    )
    stream, config = request.config, request.config.transcription
    assert stream.mode == t.StreamTranscriptionConfig.MODE_LIVE
    assert (stream.interim_results, stream.idle_timeout.ToMilliseconds()) == (True, 2500)
    pcm = config.format.pcm
    assert (pcm.encoding, pcm.sample_rate_hz, pcm.channel_count) == (t.RawPcm.ENCODING_S16_LE, 16_000, 2)
    assert (config.clips[0].start_offset.ToMilliseconds(), config.clips[0].end_offset.seconds) == (1500, 3)
    assert config.HasField("temperature")
    assert requests.transcription("w", {}).config.mode == t.StreamTranscriptionConfig.MODE_FILE
