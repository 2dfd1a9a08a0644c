"""The verbs of `pomona`, each imported only when it is used, so that the command starts at once."""

import importlib
import inspect
import re
from dataclasses import dataclass
from typing import Any

import typer
from rich.markup import escape
from typer.core import TyperGroup
from typer.main import get_command


@dataclass(frozen=True, slots=True)
class Verb:
    """Where a verb, or a group of them, lives: `function` of `module`, and the line about it in `pomona --help`."""

    module: str
    function: str
    line: str
    panel: str


SERVER = "The server"
TALK = "Talking to a server"
OPERATE = "Operating a server"

VERBS: dict[str, Verb] = {
    "serve": Verb("serve", "serve", "Run the server in the foreground.", SERVER),
    "demo": Verb("demo", "demo", "Serve two small models, ask one a question, let the other hear a recording.", SERVER),
    "doctor": Verb("doctor", "doctor", "Check what this machine can do, and how fast.", SERVER),
    "chat": Verb("chat", "chat", "Ask a model, once or in a conversation.", TALK),
    "transcribe": Verb("transcribe", "transcribe", "Turn recordings into text, or speech while it is spoken.", TALK),
    "embed": Verb("embed", "embed", "Turn texts into vectors.", TALK),
    "rerank": Verb("embed", "rerank", "Sort documents by how well they answer a query.", TALK),
    "models": Verb("models", "models", "List the models and their states.", TALK),
    "show": Verb("models", "show", "Show all that is known of one model.", TALK),
    "health": Verb("health", "health", "Tell whether a server, or a model of it, takes requests.", TALK),
    "version": Verb("version", "version", "Print the versions of this command and of the server.", TALK),
    "pull": Verb("pull", "pull", "Download a model from the hub into its cache.", OPERATE),
    "rm": Verb("remove", "rm", "Remove a downloaded model from the hub's cache.", OPERATE),
    "pack-experts": Verb(
        "pack_experts", "pack_experts", "Write the routed experts of a model into one file beside it.", OPERATE
    ),
    "fit": Verb("fit", "fit", "Tell what a model would take of memory, and whether it fits.", OPERATE),
    "fuse": Verb("fuse", "fuse", "Write a model with a LoRA adapter in its weights.", OPERATE),
    "expert-trace": Verb("expert_trace", "expert_trace", "Sum up which experts of a model were needed.", OPERATE),
    "load": Verb("load", "load", "Load a model, with progress.", OPERATE),
    "unload": Verb("load", "unload", "Unload a model and give its memory back.", OPERATE),
    "adapters": Verb("adapters", "adapters", "List, load and unload the LoRA adapters of a model.", OPERATE),
    "ps": Verb("ps", "ps", "List the models that are loaded, wait, load or failed, and what they do.", OPERATE),
    "top": Verb("top", "top", "Watch the models and requests of a server until Ctrl-C.", OPERATE),
    "requests": Verb("requests", "requests", "List the requests in flight.", OPERATE),
    "cancel": Verb("requests", "cancel", "End a request by its id.", OPERATE),
    "token": Verb("token", "token", "Make, list and revoke the tokens of a server's callers.", OPERATE),
    "logs": Verb("logs", "logs", "Print the log lines of the server and its workers.", OPERATE),
}


# What other tools call these verbs.
MEANT = {
    "ask": "chat",
    "delete": "rm",
    "download": "pull",
    "estimate": "fit",
    "generate": "chat",
    "healthcheck": "health",
    "info": "show",
    "kill": "cancel",
    "list": "models",
    "ls": "models",
    "memory": "fit",
    "merge": "fuse",
    "pack": "pack-experts",
    "refresh": "models --refresh",
    "remove": "rm",
    "run": "chat",
    "speech": "transcribe",
    "start": "serve",
    "status": "models",
    "stop": "unload",
    "subtitles": "transcribe",
    "whisper": "transcribe",
}


class VerbGroup(TyperGroup):
    """Lists every verb by its table line, and imports the one that runs."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Find the verb that `args` names and replace its table line by the real command."""
        if args[0] in MEANT:
            ctx.fail(f"No such command '{args[0]}'. Did you mean 'pomona {MEANT[args[0]]}'?")
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else _command(name), rest


def _command(name: str) -> Any:
    verb = VERBS[name]
    module = importlib.import_module(f"gateway.cli.{verb.module}")
    group = getattr(module, "GROUP", None)
    if isinstance(group, typer.Typer):
        return get_command(group)
    function = getattr(module, verb.function)
    single = typer.Typer(add_completion=False, rich_markup_mode="rich")
    single.command(name, help=_shown(inspect.getdoc(function) or ""))(function)
    return get_command(single)


def _shown(text: str) -> str:
    """Return a verb's text as markup in which bold is bold, and every other word in brackets is what it says."""
    return re.sub(r"\\\[(/?bold)\]", r"[\1]", escape(text))


def _listed() -> None:
    """Stand in the list of verbs; never called."""


def _build() -> typer.Typer:
    built = typer.Typer(
        cls=VerbGroup,
        help="Serves language and speech models over gRPC from this machine. Start with: [bold]pomona demo[/bold]",
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name, verb in VERBS.items():
        built.command(name, help=verb.line, rich_help_panel=verb.panel)(_listed)
    return built


app = _build()
