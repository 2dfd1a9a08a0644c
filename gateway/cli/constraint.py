"""Options of the form that an answer must have, and what they set in a request."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from pomona.v1 import generation_pb2

from gateway.cli.failures import UsageError
from gateway.cli.fields import read_json, read_text

_PANEL = "Form of the answer (one of these)"


@dataclass(frozen=True, slots=True)
class ConstraintOptions:
    """What the answer must look like; at most one is set."""

    schema: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSON that this JSON Schema allows.", rich_help_panel=_PANEL),
    ] = None
    json_object: Annotated[bool, typer.Option("--json-object", help="Any JSON object.", rich_help_panel=_PANEL)] = False
    regex: Annotated[
        str | None,
        typer.Option(
            metavar="REGEX", help="Text that this regular expression matches as a whole.", rich_help_panel=_PANEL
        ),
    ] = None
    choices: Annotated[
        list[str] | None,
        typer.Option(
            metavar="A,B,...",
            help="One of these texts. Given several times each is taken as it is, commas included.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    grammar: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Text that this Lark grammar describes.", rich_help_panel=_PANEL),
    ] = None

    def apply(self, spec: generation_pb2.GenerationSpec) -> None:
        """Write what is set into `spec`.

        Raises:
            UsageError: two are set, or a file cannot be used.
        """
        given = [
            f"--{name.replace('_', '-')}"
            for name in ("schema", "json_object", "regex", "choices", "grammar")
            if getattr(self, name) not in (None, False, [])
        ]
        if len(given) > 1:
            raise UsageError(f"{given[0]} and {given[1]} cannot both hold: give one of them")
        if self.schema is not None:
            spec.constraint.json_schema = _schema(self.schema)
        elif self.json_object:
            spec.constraint.json_object.SetInParent()
        elif self.regex is not None:
            spec.constraint.regex = self.regex
        elif self.choices:
            spec.constraint.choices.choices.extend(_choices(self.choices))
        elif self.grammar is not None:
            spec.constraint.lark_grammar = read_text("--grammar", self.grammar)


def _schema(path: Path) -> str:
    text, schema = read_json("--schema", path)
    if not isinstance(schema, dict | bool):
        raise UsageError(f"--schema: {path} is not a JSON object")
    return text


def _choices(given: list[str]) -> Iterable[str]:
    """Return the choices: of one list with commas, its parts."""
    return [part.strip() for part in given[0].split(",")] if len(given) == 1 else given
