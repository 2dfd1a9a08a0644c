"""What llguidance is given for a constraint: one JSON text, and the special tokens that it may generate.

All that a client wrote inside is checked here: schemas in lark text too.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from llguidance import regex_to_lark

from worker.constraints.grammar import Kind
from worker.constraints.refusal import Refused, invalid, unsupported
from worker.constraints.schema import enforced_schema, enforced_value

# `\d` and `\w` are ASCII, as in the patterns of JSON Schema.
ASCII_CLASSES = "dw"


@dataclass(frozen=True, slots=True)
class Source:
    """A constraint as llguidance reads it.

    Attributes:
        text: a JSON list of grammars.
        special_tokens: names of those that may be generated inside; every other one, but an end, never.
        cost_s: for how long its trial computed; 0 before there was one.
    """

    text: str
    special_tokens: frozenset[str] = frozenset()
    cost_s: float = 0.0


def source_of(kind: Kind, text: str, special_tokens: Mapping[str, int]) -> Source:
    """Write a constraint for llguidance.

    Args:
        kind: how `text` is to be read.
        text: as it came.
        special_tokens: ids of all special tokens of the model, by their names.

    Raises:
        Refused: a schema that is wrong, or says what is not enforced.
    """
    match kind:
        case "json_schema":
            return Source(_json_schema(enforced_schema(text)))
        case "json_object":
            return Source(_json_schema(enforced_value({"type": "object"})))
        case "regex":
            return Source(_lark(f"start: /{regex_to_lark(text, ASCII_CLASSES)}/"))
        case "choices":
            choices = " | ".join(map(_quoted, json.loads(text)))
            return Source(_lark(f"start: CHOICE\nCHOICE: {choices}"))
        case "lark":
            reader = _LarkReader(text, special_tokens)
            return Source(_lark(reader.read()), frozenset(reader.named))


def _json_schema(schema: dict[str, Any]) -> str:
    return _written({"grammars": [{"json_schema": schema}]})


def _lark(text: str) -> str:
    return _written({"grammars": [{"lark_grammar": text}]})


def _written(document: object) -> str:
    text = json.dumps(document, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise invalid("it has half a character") from None
    return text


def _quoted(text: str) -> str:
    """Write a string of lark text, which knows JSON's escapes and DEL only as one."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


class _LarkReader:
    """Copies lark text with schemas reduced, and with plain text for the names of tokens that are none.

    Attributes:
        named: special tokens that it names.
    """

    # Strings, comments and regular expressions are passed over whole.
    _PARTS = re.compile(
        r'(?P<passed>"(?:\\.|[^"\\\n])*"|(?:#|//)[^\n]*|/(?:\\.|[^/\\])+/)|(?P<schema>%json\s*)|(?P<token><[^<>\s]+>)'
    )

    def __init__(self, text: str, special_tokens: Mapping[str, int]) -> None:
        self._text = text
        self._special_tokens = special_tokens
        self._numbered = {f"<[{token_id}]>": name for name, token_id in special_tokens.items()}
        self.named: set[str] = set()

    def read(self) -> str:
        """Return the copy.

        Raises:
            Refused: a schema in it is, or it names plain tokens by their numbers.
        """
        parts: list[str] = []
        position = 0
        while match := self._PARTS.search(self._text, position):
            copied, end = self._copy(match)
            parts += [self._text[position : match.start()], copied]
            position = end
        return "".join([*parts, self._text[position:]])

    def _copy(self, match: re.Match[str]) -> tuple[str, int]:
        """Return what takes the place of a part, and where the part ends."""
        match match.lastgroup:
            case "schema":
                return self._schema(match)
            case "token":
                return self._token(match[0]), match.end()
            case _:
                return match[0], match.end()

    def _token(self, text: str) -> str:
        if text.startswith("<["):
            name = self._numbered.get(text)
            if name is None:
                raise unsupported(f"{text[:40]}: only a single special token can be named by its number")
        elif text not in self._special_tokens:
            return _quoted(text)
        else:
            name = text
        self.named.add(name)
        return name

    def _schema(self, match: re.Match[str]) -> tuple[str, int]:
        line = self._text.count("\n", 0, match.start()) + 1
        try:
            value, end = json.JSONDecoder().raw_decode(self._text, match.end())
            schema = enforced_value(cast("object", value))
        except (ValueError, RecursionError):
            # llguidance says what it does not accept.
            return match[0], match.end()
        except Refused as refused:
            raise Refused(refused.reason, f"%json in line {line}: {refused.problem}") from None
        return f"%json {_written(schema)}", end
