"""`serve`: the server in the foreground."""

import importlib.util
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.address import ListenError
from gateway.cli import output
from gateway.cli.failures import CliError, UsageError
from gateway.cli.lifeline import end_with_parent
from gateway.cli.security_options import SecurityOptions
from gateway.cli.verb import verb
from gateway.serving import ServerBroken
from gateway.serving import serve as serve_clients
from gateway.settings import Settings, SettingsError, load_settings


class LogLevel(StrEnum):
    """The least that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How log lines look."""

    CONSOLE = "console"
    JSON = "json"


@verb
def serve(
    *,
    listen: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="HOST:PORT (port 0 takes a free one) or unix:PATH.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=PATH", help="Serve this folder or GGUF file under this name; may repeat."),
    ] = None,
    settings: Annotated[Path | None, typer.Option(metavar="FILE", help="A TOML file of settings.")] = None,
    allow_mlx_lm: Annotated[
        bool | None,
        typer.Option("--allow-mlx-lm", help="Have mlx-lm compute architectures that Pomona has not."),
    ] = None,
    log_level: Annotated[LogLevel | None, typer.Option(help="The least that is logged.")] = None,
    log_format: Annotated[LogFormat | None, typer.Option(help="How log lines look.")] = None,
    security: SecurityOptions,
    lifeline_fd: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run the server in the foreground.

    Once it takes calls it prints "listening on ADDRESS", the only line on
    standard output; log lines go to standard error. A model is loaded by its
    first request, or by `pomona load`. SIGTERM and Ctrl-C let running requests
    finish; a second one hurries them. SIGHUP has settings and models read again
    and ends nothing.

    Other machines can reach it only with --tls-cert, --tls-key and --tokens,
    or with --allow-plaintext: see docs/security.md.

    Flags win over POMONA_* variables, which win over the settings file.

    Example:
    [bold]pomona serve --model smollm2=~/models/SmolLM2-135M-Instruct.Q4_1.gguf[/bold]
    [bold]pomona chat smollm2 "Why is the sky blue?"[/bold]
    """
    if lifeline_fd is not None:
        end_with_parent(lifeline_fd)
    flags = _flags(listen, model or [], {"level": log_level, "format": log_format})
    if told := security.as_settings():
        flags["security"] = told
    if allow_mlx_lm is not None:
        flags["allow_mlx_lm"] = allow_mlx_lm
    try:
        reload = partial(load_settings, settings, flags)
        _run(reload(), reload)
    except (SettingsError, ListenError) as error:
        raise UsageError(str(error)) from error
    except ServerBroken as error:
        raise CliError("the server broke and ended itself; its log says how") from error


def _flags(listen: str | None, models: list[str], logs: dict[str, StrEnum | None]) -> dict[str, Any]:
    """Return what the flags say as a part of the settings tree."""
    flags: dict[str, Any] = {"models": [_model(text) for text in models]}
    if listen is not None:
        flags["listen"] = listen
    if chosen := {name: value.value for name, value in logs.items() if value is not None}:
        flags["logs"] = chosen
    return flags


def _model(text: str) -> dict[str, str]:
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise UsageError(f"--model: {text!r} is not NAME=PATH")
    return {"name": name, "checkpoint": path}


def _run(settings: Settings, reload: Callable[[], Settings]) -> None:
    _runner()(serve_clients(settings, _announce, reload))


def _runner() -> Any:
    """Return what runs a coroutine: uvloop where it is installed, asyncio elsewhere."""
    return importlib.import_module("uvloop" if importlib.util.find_spec("uvloop") else "asyncio").run


def _announce(address: str) -> None:
    output.line(f"listening on {address}")
