"""Calls that are JSON objects: a name, and the arguments under one of two keys."""

from worker.dialects.call import ToolCall
from worker.dialects.coercion import Coercion
from worker.dialects.reader import NotACallError
from worker.dialects.values import Value, has_surrogates, read_json

# Templates use one or the other; models trained on both mix them up.
_ARGUMENTS = ("arguments", "parameters")
_MAX_NAME_CHARS = 256


def json_call(text: str, coercion: Coercion) -> ToolCall:
    """Return the call that a JSON text is.

    Raises:
        NotACallError: it is none.
    """
    return call_of(_parsed(text), coercion)


def json_calls(text: str, coercion: Coercion) -> list[ToolCall]:
    """Return the calls that a JSON text is an array of, at least one.

    Raises:
        NotACallError: it is none, or one of them is none.
    """
    values = _parsed(text)
    if not isinstance(values, list) or not values:
        raise NotACallError
    return [call_of(each, coercion) for each in values]


def json_arguments(name: str, text: str, coercion: Coercion) -> ToolCall:
    """Return the call of a name with a JSON text as arguments.

    Raises:
        NotACallError: the text is no JSON object.
    """
    return _made(name, _parsed(text), coercion)


def call_of(value: Value, coercion: Coercion) -> ToolCall:
    """Return the call that a value describes; without arguments it has none.

    Raises:
        NotACallError: it describes none.
    """
    if not isinstance(value, dict):
        raise NotACallError
    none: dict[str, Value] = {}
    given = next((value[key] for key in _ARGUMENTS if value.get(key) is not None), none)
    if isinstance(given, str):
        given = _parsed(given)  # some models write the object as a string of JSON
    return _made(value.get("name"), given, coercion)


def _made(name: Value, arguments: Value, coercion: Coercion) -> ToolCall:
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise NotACallError
    if not 0 < len(name) <= _MAX_NAME_CHARS or has_surrogates(name):
        raise NotACallError
    return coercion.call(name, arguments)


def _parsed(text: str) -> Value:
    try:
        return read_json(text)
    except ValueError:
        raise NotACallError from None
