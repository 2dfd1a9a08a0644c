"""Tools, calls and results of a chat's history as its template reads them: OpenAI's shape, with the checkpoint's turns.

Most templates read a call's arguments as an object, some join them to other text and so need JSON. Some refuse an id
that is not of nine letters and digits, and some a result that does not name its tool. Nothing here knows the wire.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

ID_CHARS = 9
_ARGUMENTS = r"""[\w.'"\[\]]*\barguments\b['"\]]*"""
# `… + arguments + …` or `{{ arguments }}`, and nothing that only an object can do.
_AS_TEXT = re.compile(rf"(?:[+~]\s*{_ARGUMENTS}\s*(?:[+~]|-?}}}})|\{{\{{-?\s*{_ARGUMENTS}\s*-?\}}\}})")
_AS_OBJECT = re.compile(rf"{_ARGUMENTS}\s*(?:\||\.items|\bis\b|\[|-?%}})")
_SHORT_IDS = re.compile(r"\bid\b['\"\]]*\s*\|\s*length\s*(?:!=|<)\s*9\b|tool_call_id\s*\|\s*length\s*(?:!=|<)\s*9\b")
_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class PastCall:
    """A call that an earlier answer made."""

    id: str
    name: str
    arguments_json: str


@dataclass(frozen=True, slots=True)
class HistoryForm:
    """What a template wants of calls and results.

    Attributes:
        arguments_are_text: JSON text instead of an object.
        ids_are_short: ids of exactly nine letters and digits.
    """

    arguments_are_text: bool = False
    ids_are_short: bool = False


def history_form(template: str) -> HistoryForm:
    """Return what a template wants, by its source."""
    as_text = _AS_TEXT.search(template) is not None and _AS_OBJECT.search(template) is None
    return HistoryForm(as_text, _SHORT_IDS.search(template) is not None)


def template_tool(name: str, description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool as templates read it; they take for granted that its arguments have a schema."""
    parameters = {**_NO_ARGUMENTS, **schema}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def arguments_of(arguments_json: str) -> dict[str, Any]:
    """Return a call's arguments.

    Raises:
        ValueError: the text is no JSON object.
    """
    try:
        arguments = json.loads(arguments_json, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(arguments, dict):
        raise ValueError("no JSON object")  # noqa: TRY004 - of a text
    return cast("dict[str, Any]", arguments)


def shaped(messages: Sequence[Mapping[str, Any]], form: HistoryForm) -> list[dict[str, Any]]:
    """Return messages as a template reads them.

    A result without a name gets that of the call before it that it answers.

    Args:
        messages: role and content of each; `tool_calls`, of `PastCall`, where it made calls; `tool_call_id` and
            perhaps `name` where it is a result; all else stays as it is.
        form: what the template wants.

    Raises:
        ValueError: a call's arguments are no JSON object.
    """
    names: dict[str, str] = {}
    result: list[dict[str, Any]] = []
    for message in messages:
        entry = dict(message)
        if calls := cast("Sequence[PastCall]", message.get("tool_calls") or ()):
            names.update({call.id: call.name for call in calls})
            entry["tool_calls"] = [_entry(call, form) for call in calls]
        elif "tool_call_id" in message:
            call_id = str(message["tool_call_id"])
            entry["tool_call_id"] = _id(call_id, form)
            if not message.get("name") and call_id in names:
                entry["name"] = names[call_id]
        result.append(entry)
    return result


def _entry(call: PastCall, form: HistoryForm) -> dict[str, Any]:
    arguments = arguments_of(call.arguments_json)
    given = call.arguments_json if form.arguments_are_text else arguments
    return {"id": _id(call.id, form), "type": "function", "function": {"name": call.name, "arguments": given}}


def _id(call_id: str, form: HistoryForm) -> str:
    """Return an id that the template takes: another one, always the same for it, where it would not take this one."""
    if not form.ids_are_short or (len(call_id) == ID_CHARS and call_id.isascii() and call_id.isalnum()):
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:ID_CHARS]


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")
