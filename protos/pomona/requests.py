"""Requests of the contract, made of plain values."""

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from google.protobuf.message import Message

from pomona.options import Adapter, ChatOptions, EmbedOptions, GenerateOptions, RerankOptions, Tool
from pomona.v1 import common_pb2, embedding_pb2, generation_pb2, transcription_pb2

Text = str | Sequence[int]
ChatTurn = Mapping[str, Any] | generation_pb2.ChatMessage

_ENVELOPE = ("request_id", "priority")
_CHAT = ("tools", "tool_choice", "enable_thinking", "template_vars", "continue_final_message")


def generation(model: str, prompt: Text, options: GenerateOptions) -> generation_pb2.StreamGenerateRequest:
    """Ask for what follows `prompt`: text, or token ids.

    Raises:
        TypeError: an option has no such name.
        ValueError: an option's value is of no use.
    """
    request = generation_pb2.StreamGenerateRequest(model=model)
    if isinstance(prompt, str):
        request.spec.prompt = prompt
    else:
        request.spec.token_ids.ids.extend(prompt)
    _set_generation(request, dict(options))
    return request


def chat(model: str, messages: str | Sequence[ChatTurn], options: ChatOptions) -> generation_pb2.StreamGenerateRequest:
    """Ask for the answer to a conversation, or to one message of the user.

    Raises:
        TypeError: an option has no such name.
        ValueError: an option's value or a message is of no use.
    """
    request = generation_pb2.StreamGenerateRequest(model=model)
    rest = dict(options)
    _set_chat(request.spec.chat, messages, {name: rest.pop(name) for name in _CHAT if name in rest})
    _set_generation(request, rest)
    return request


def counting(model: str, text: str | Sequence[ChatTurn]) -> generation_pb2.CountTokensRequest:
    """Ask how many tokens a prompt, or a conversation, has."""
    request = generation_pb2.CountTokensRequest(model=model)
    if isinstance(text, str):
        request.prompt = text
    else:
        _set_chat(request.chat, text, {})
    return request


def embedding(model: str, texts: Sequence[str], options: EmbedOptions) -> embedding_pb2.EmbedRequest:
    """Ask for the vectors of texts.

    Raises:
        TypeError: an option has no such name.
        ValueError: an option's value is of no use.
    """
    request = embedding_pb2.EmbedRequest(model=model, inputs=[embedding_pb2.EmbedInput(text=text) for text in texts])
    rest = _set_envelope(request, dict(options))
    for name in [each for each in rest if each in request.options.DESCRIPTOR.fields_by_name]:
        set_field(request.options, name, rest.pop(name))
    _refuse(rest)
    request.options.vector_type = embedding_pb2.VECTOR_TYPE_FLOAT32_LE
    return request


def ranking(model: str, query: str, documents: Sequence[str], options: RerankOptions) -> embedding_pb2.RerankRequest:
    """Ask how well documents answer a query.

    Raises:
        TypeError: an option has no such name.
        ValueError: an option's value is of no use.
    """
    request = embedding_pb2.RerankRequest(model=model, query=query, documents=documents)
    rest = _set_envelope(request, dict(options))
    for name in [each for each in rest if each in {"top_n", "truncation", "instruction"}]:
        set_field(request, name, rest.pop(name))
    _refuse(rest)
    return request


def transcription(model: str, options: Mapping[str, Any]) -> transcription_pb2.StreamTranscribeRequest:
    """Ask for a transcript; the audio follows in messages of its own.

    Raises:
        TypeError: an option has no such name.
        ValueError: an option's value is of no use.
    """
    request = transcription_pb2.StreamTranscribeRequest(model=model)
    stream, config = request.config, request.config.transcription
    rest = _set_envelope(request, dict(options))
    stream.mode = stream.MODE_LIVE if rest.pop("live", False) else stream.MODE_FILE
    if "pcm" in rest:
        encoding, config.format.pcm.sample_rate_hz, config.format.pcm.channel_count = rest.pop("pcm")
        set_field(config.format.pcm, "encoding", encoding)
    for start_s, end_s in rest.pop("clips", ()):
        clip = config.clips.add()
        set_field(clip, "start_offset", start_s)
        set_field(clip, "end_offset", end_s)
    for name in list(rest):
        target = config if name in config.DESCRIPTOR.fields_by_name else stream
        field = name.removesuffix("_s")
        if field in target.DESCRIPTOR.fields_by_name and field not in {"mode", "transcription", "format"}:
            set_field(target, field, rest.pop(name))
    _refuse(rest)
    return request


def set_field(message: Message, name: str, value: Any) -> None:
    """Set a field by its name: enums by the name of a value without prefix, durations in seconds, maps and lists whole.

    Raises:
        ValueError: an enum has no such value, or a number is out of its range.
        TypeError: it is of another type.
    """
    field = message.DESCRIPTOR.fields_by_name[name]
    if field.enum_type is not None:
        setattr(message, name, _enum_value(name, field.enum_type, value))
        return
    try:
        _set(message, field, name, value)
    except (TypeError, ValueError) as error:  # which do not say of which field
        raise type(error)(f"{name}: {error}") from None


def _set(message: Message, field: Any, name: str, value: Any) -> None:
    if field.message_type is not None and field.message_type.full_name == "google.protobuf.Duration":
        getattr(message, name).FromTimedelta(timedelta(seconds=value))
    elif field.message_type is not None and field.message_type.GetOptions().map_entry:
        getattr(message, name).update(value)
    elif field.is_repeated:
        getattr(message, name).extend(value)
    else:
        setattr(message, name, value)


def _enum_value(name: str, enum: Any, value: Any) -> int:
    """Return the number of a value that is named without the prefix that all of its enum have."""
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    found = enum.values_by_name.get(f"{prefix}{str(value).upper()}")
    if found is None:
        names = [each.name.removeprefix(prefix).lower() for each in enum.values if each.number]
        raise ValueError(f"{name} is one of {', '.join(names)}, not {value!r}")
    return found.number


def _set_envelope(request: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Set what every request begins with; return the options that are left."""
    options.pop("timeout_s", None)
    for name in _ENVELOPE:
        if name in options:
            setattr(request, name, options.pop(name))
    request.adapters.extend(_adapter(each) for each in options.pop("adapters", ()))
    return options


def _adapter(use: Adapter) -> common_pb2.AdapterUse:
    if isinstance(use, common_pb2.AdapterUse):
        return use
    if isinstance(use, str):
        return common_pb2.AdapterUse(adapter=use)
    return common_pb2.AdapterUse(adapter=use[0], scale=use[1])


def _set_generation(request: generation_pb2.StreamGenerateRequest, options: dict[str, Any]) -> None:
    rest = _set_envelope(request, options)
    _set_constraint(request.spec, rest)
    if "speculation" in rest:
        request.spec.speculation.enabled = rest.pop("speculation")
    if "coalesce_interval_s" in rest:
        set_field(request.stream_options, "coalesce_interval", rest.pop("coalesce_interval_s"))
    spec = request.spec
    parts = (spec.sampling, spec.stopping, spec.output, spec.cache, spec.speculation, request.stream_options)
    for part in parts:
        for name in [each for each in rest if each in part.DESCRIPTOR.fields_by_name]:
            set_field(part, name, rest.pop(name))
    _refuse(rest)


def _set_constraint(spec: generation_pb2.GenerationSpec, options: dict[str, Any]) -> None:
    kinds = {name: options.pop(name) for name in spec.constraint.DESCRIPTOR.fields_by_name if name in options}
    if len(kinds) > 1:
        raise ValueError(f"at most one constraint, not {' and '.join(kinds)}")
    for name, value in kinds.items():
        if name == "choices":
            spec.constraint.choices.choices.extend(value)
        elif name == "json_object":
            if value:
                spec.constraint.json_object.SetInParent()
        else:
            setattr(spec.constraint, name, value if isinstance(value, str) else json.dumps(value))


def _set_chat(target: generation_pb2.ChatInput, messages: str | Sequence[ChatTurn], options: dict[str, Any]) -> None:
    turns = [{"role": "user", "text": messages}] if isinstance(messages, str) else messages
    target.messages.extend(_message(each) for each in turns)
    target.tools.extend(_tool(each) for each in options.get("tools", ()))
    if "tool_choice" in options:
        _set_tool_choice(target.tool_choice, options["tool_choice"])
    for name in ("enable_thinking", "continue_final_message"):
        if name in options:
            setattr(target, name, options[name])
    for name, value in options.get("template_vars", {}).items():
        _set_value(target.template_vars[name], value)


def _message(turn: ChatTurn) -> generation_pb2.ChatMessage:
    if isinstance(turn, generation_pb2.ChatMessage):
        return turn
    message = generation_pb2.ChatMessage()
    for name, value in turn.items():
        if name not in message.DESCRIPTOR.fields_by_name:
            raise ValueError(f"a message has no {name}")
        set_field(message, name, value)
    return message


def _tool(tool: Tool) -> generation_pb2.ToolSpec:
    if isinstance(tool, generation_pb2.ToolSpec):
        return tool
    schema = json.dumps(tool["parameters"]) if "parameters" in tool else ""
    return generation_pb2.ToolSpec(
        name=tool["name"], description=tool.get("description", ""), parameters_json_schema=schema
    )


def _set_tool_choice(choice: generation_pb2.ToolChoice, wanted: str) -> None:
    if wanted in {"auto", "none", "required"}:
        set_field(choice, "mode", wanted)
    else:
        choice.mode, choice.name = choice.MODE_NAMED, wanted


def _set_value(target: Any, value: Any) -> None:
    if value is None:
        target.null_value = 0
    elif isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, int | float):
        target.number_value = value
    elif isinstance(value, str):
        target.string_value = value
    elif isinstance(value, Mapping):
        target.struct_value.update(value)
    else:
        target.list_value.extend(value)


def _refuse(rest: Mapping[str, Any]) -> None:
    if rest:
        raise TypeError(f"there is no option {', '.join(sorted(rest))}")
