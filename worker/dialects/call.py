"""A tool that a request declares, and a call of one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that the model may call.

    Attributes:
        schema: parsed JSON schema of its arguments; empty where it declares none.
    """

    name: str
    description: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model made.

    Attributes:
        name: as written; not always one of the declared tools.
        arguments_json: one JSON object without white space between its parts, keys in the order written.
    """

    name: str
    arguments_json: str
