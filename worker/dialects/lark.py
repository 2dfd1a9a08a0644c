"""Writes grammars for llguidance, whose variant of Lark they are in (its `docs/syntax.md`).

Terminals there are greedy and single-minded: once one began, nothing else is tried until it ends. So a text and the
mark that closes it are one terminal, a lazy one, or the mark is a special token, which ends any text.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from worker.dialects.schema import Schema

# As templates write JSON; white space of the model's own choice would be without end.
_GUIDANCE = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
    "json_allowed_escapes": 'nrbtf\\"',
}


@dataclass(frozen=True, slots=True)
class TextBounds:
    """What a string of free text has to be."""

    min_chars: int = 0
    max_chars: int | None = None
    pattern: str | None = None

    @classmethod
    def of(cls, schema: Mapping[str, Any]) -> "TextBounds":
        """Read them off a schema of strings."""
        return cls(schema.get("minLength", 0), schema.get("maxLength"), schema.get("pattern"))


class Lark:
    """A grammar that is being written.

    Args:
        special: token id of each mark that is a special token.
    """

    def __init__(self, special: Mapping[str, int]) -> None:
        self._special = special
        self._rules: dict[str, str] = {}
        self._marks = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))) or r"(?!)")

    def is_special(self, mark: str) -> bool:
        """Say whether a mark is a special token."""
        return mark in self._special

    def text(self, start: str) -> str:
        """Return the whole grammar.

        Args:
            start: expression of what the model may write.
        """
        return "\n".join([f"start: {start}", *(f"{name}{body}" for name, body in self._rules.items())]) + "\n"

    def name(self, *, terminal: bool = False) -> str:
        """Take a name for a rule that is still to be written."""
        name = f"{'T' if terminal else 'r'}{len(self._rules)}"
        self._rules[name] = ""
        return name

    def write(self, name: str, expression: str, *, is_lazy: bool = False) -> None:
        """Write a rule whose name was taken; a lazy one is over as soon as it can be."""
        self._rules[name] = f"{'[lazy]' if is_lazy else ''}: {expression}"

    def rule(self, expression: str, *, terminal: bool = False, is_lazy: bool = False) -> str:
        """Write a rule or terminal, and return its name."""
        name = self.name(terminal=terminal)
        self.write(name, expression, is_lazy=is_lazy)
        return name

    def written(self, text: str) -> str:
        """Return the expression of a text, its special tokens as such."""
        parts: list[str] = []
        end = 0
        for mark in self._marks.finditer(text):
            parts += [_quoted(text[end : mark.start()]), f"<[{self._special[mark[0]]}]>"]
            end = mark.end()
        return " ".join(part for part in [*parts, _quoted(text[end:])] if part)

    def framed(self, before: str, arguments: str, after: str = "") -> str:
        """Return the expression of one call: its arguments' expression between two texts."""
        return " ".join(part for part in (self.written(before), arguments, self.written(after)) if part)

    def grammar(self, calls: Sequence[str], *, between: str = "", before: str = "", after: str = "") -> str:
        """Return the whole grammar of one or more calls.

        Args:
            calls: expression of each that there may be.
            between: text between two.
            before: text before the first.
            after: text after the last.
        """
        call = self.rule(" | ".join(calls))
        return self.text(self.framed(before, f"{call} ({self.framed(between, call)})*", after))

    def json(self, declared: Any, root: Mapping[str, Any]) -> str:
        """Write a rule of JSON by a schema within another, whose definitions it may refer to."""
        schema: Mapping[str, Any] = cast("Mapping[str, Any]", declared) if isinstance(declared, Mapping) else {}
        kept = {key: root[key] for key in ("$defs", "definitions") if key in root}
        return self.rule(f"%json {json.dumps({**kept, **schema, 'x-guidance': _GUIDANCE})}")

    def json_object(self, root: Mapping[str, Any]) -> str:
        """Write a rule of a JSON object by the schema of a tool's arguments."""
        return self.json({"type": "object", **root}, root)

    def text_through(self, bounds: TextBounds, mark: str, *, before: str = "", without: str = "") -> str:
        """Return the expression of free text and the mark that ends it.

        Args:
            bounds: of the text, which never holds the mark.
            mark: what ends it.
            before: written between the two, unless the mark is a special token.
            without: characters that are not in the text, as within brackets of a regular expression.
        """
        most = "" if bounds.max_chars is None else bounds.max_chars
        room = f"{{{bounds.min_chars},{most}}}" if bounds.min_chars or most != "" else "*"
        body = f"/(?s:{f'[^{without}]' if without else '.'}{room})/ & ~/(?s:.*){_escaped(mark)}(?s:.*)/"
        if bounds.pattern is not None:
            body += f" & /{_unanchored(bounds.pattern)}/"
        if not self.is_special(mark):
            # Lazy, so that it is known to be over: a special token that follows must not find it open.
            return self.rule(self.rule(f"({body}) {_quoted(before + mark)}", terminal=True), is_lazy=True)
        optional = "" if bounds.min_chars or bounds.pattern is not None else "?"
        return f"{self.rule(f'{body} & /(?s:.+)/', terminal=True)}{optional} {self.written(mark)}"

    def one_through(self, texts: Sequence[str], mark: str, *, before: str = "") -> str:
        """Return the expression of one of some texts and the mark that ends it."""
        return f"({' | '.join(self.written(f'{each}{before}{mark}') for each in texts)})"

    def listed(self, members: Sequence[tuple[str, bool]], separator: str) -> str:
        """Return the expression of members in their order, the optional ones left out or not.

        Args:
            members: expression of each, and whether it has to be there.
            separator: text between two.
        """
        if not members:
            return '""'
        rests = [""] * (len(members) + 1)
        for index in range(len(members) - 1, 0, -1):
            member, is_required = members[index]
            rests[index] = self.rule(f"({_quoted(separator)} {member}){'' if is_required else '?'} {rests[index + 1]}")
        choices: list[str] = []
        for index, (member, is_required) in enumerate(members):
            choices.append(f"{member} {rests[index + 1]}")
            if is_required:
                return f"({' | '.join(choices)})"
        return f"({' | '.join(choices)})?"


def parameters(schema: Schema) -> list[tuple[str, Any, bool]]:
    """Return the declared arguments of a tool in their order: name, schema, and whether it is required."""
    shape = schema.part(schema.root, "object")
    declared: Mapping[str, Any] = shape.get("properties") or {}
    required: Sequence[str] = shape.get("required") or ()
    undeclared = [name for name in required if name not in declared]
    return [
        *((name, each, name in required) for name, each in declared.items()),
        *((name, shape.get("additionalProperties"), True) for name in undeclared),
    ]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def _escaped(text: str) -> str:
    return re.escape(text).replace("/", r"\/").replace("\n", r"\n")


def _unanchored(pattern: str) -> str:
    """Write a JSON schema's pattern, which matches anywhere, as one that matches a whole text."""
    escaped = re.sub(r"(?<!\\)/", r"\/", pattern).replace("\n", r"\n")
    head = "" if escaped.startswith("^") else "(?s:.*)"
    is_closed = escaped.endswith("$") and not escaped.endswith(r"\$")
    body = escaped.removeprefix("^")
    return f"{head}({body[:-1] if is_closed else body}){'' if is_closed else '(?s:.*)'}"
