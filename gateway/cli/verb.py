"""What every verb shares: grouped options, and failures that end in one plain line and an exit code."""

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, cast, get_type_hints

import typer

from gateway.cli import output
from gateway.cli.failures import CliError, Interrupted, UsageError
from gateway.cli.fields import is_text

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]


def verb(function: Callable[..., None]) -> Callable[..., None]:
    """Make `function` a verb.

    A parameter whose type is a dataclass becomes one option for each field. A failure is printed as one line on
    standard error (and, where the parameter `as_json` is set, as an object on standard output) and sets the exit code:
    1 for a failure, 2 for wrong usage, 130 for Ctrl-C. Of Ctrl-C, a person need not be told.
    """
    hints = get_type_hints(function, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if isinstance(kind, type) and is_dataclass(kind)}

    @functools.wraps(function)
    def run(**values: Any) -> None:
        as_json = bool(values.get("as_json", False))
        try:
            _check_text(values)
            for name, kind in groups.items():
                values[name] = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
            function(**values)
        except CliError as error:
            _report(error, as_json=as_json)
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt as error:
            stopped = Interrupted("ended by Ctrl-C")
            if as_json:
                output.emit({"error": stopped.as_dict()})
            raise typer.Exit(stopped.exit_code) from error

    parameters = list(_parameters(function, hints, groups))
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__dict__["__signature__"] = inspect.Signature(parameters)
    return run


def _parameters(
    function: Callable[..., None], hints: dict[str, Any], groups: dict[str, Any]
) -> Iterator[inspect.Parameter]:
    for name, parameter in inspect.signature(function).parameters.items():
        if name in groups:
            yield from _field_parameters(groups[name])
        else:
            yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name])


def _field_parameters(group: Any) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        yield inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[field.name]
        )


def _check_text(values: dict[str, Any]) -> None:
    """Refuse bytes that are no text: no field of a message holds them."""
    for name, value in values.items():
        for each in cast("list[Any]", value) if isinstance(value, list) else [value]:
            if isinstance(each, str) and not is_text(each):
                raise UsageError(f"{name.replace('_', ' ')} holds bytes that are not UTF-8")


def _report(error: CliError, *, as_json: bool) -> None:
    if as_json:
        output.emit({"error": error.as_dict()})
    output.notice(f"error: {error}")
