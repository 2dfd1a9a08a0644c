"""`fit`: what a model takes of memory, and whether this machine has it, before anything is loaded."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from pomona.v1 import model_pb2

from gateway.catalogue import is_name
from gateway.cli import fit_table, output
from gateway.cli.connection import ServerOptions, connect
from gateway.cli.expert_options import ExpertBudget, Experts, expert_options
from gateway.cli.failures import ServerError, SetupError, UsageError
from gateway.cli.gateway_failure import told
from gateway.cli.load import KvScheme
from gateway.cli.own_worker import has_worker, quiet_log, worker_command
from gateway.cli.verb import JsonFlag, verb
from gateway.errors import GatewayError
from gateway.estimate import add_room, told_settings
from gateway.experts import experts_word
from gateway.kv_scheme import checked_kv_scheme
from gateway.memory import machine_memory
from gateway.one_shot import OneShot

LIMIT_S = 60.0


@verb
def fit(
    *,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model of the server, or a path of this machine.")],
    context: Annotated[
        int | None,
        typer.Option("--context", "--context-tokens", min=1, metavar="N", help="Longest prompt and answer together."),
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option("--rows", "--max-batch-rows", min=1, max=256, metavar="N", help="Requests that run side by side."),
    ] = None,
    kv_scheme: KvScheme = "",
    experts: Experts = "",
    expert_budget: ExpertBudget = "",
    server: ServerOptions,
    as_json: JsonFlag = False,
) -> None:
    """Tell what a model would take of memory, and whether it fits.

    MODEL is a name that the server knows. What begins with "/", "." or "~",
    or ends with .gguf, is a folder or file of this machine instead, and no
    server is asked: pomona fit ./my-model --context 32768

    Nothing is loaded: it is counted from the headers. Every part is the most
    that it takes. A row is a request that runs, with its whole context; for
    speech, a window of 30 seconds. Models together may take three quarters of
    the machine's memory. What you leave out is as the server has it, or, for
    a path, as a server would by default.

    The exit code is 0 where it fits (perhaps once idle models are unloaded),
    and 1 where it does not.

    With --json: a pomona.v1.EstimateModelResponse in protobuf's JSON form.
    """
    options = model_pb2.LoadOptions(context_tokens=context, max_batch_rows=rows, kv_scheme=kv_scheme)
    options.MergeFrom(expert_options(experts, expert_budget))
    response = _here(model, options) if is_path(model) else _there(model, options, server)
    if as_json:
        output.emit(response, indent=2)
    else:
        output.table(fit_table.HEADERS, fit_table.rows(response))
        output.line()
        for line in (*fit_table.verdict(response), *fit_table.least_budget(response)):
            output.line(line)
    if not fit_table.fits(response):
        raise typer.Exit(1)


def is_path(text: str) -> bool:
    """Say whether `text` is a path: it ends with .gguf, or cannot be the name of a model."""
    return not is_name(text) or text.lower().endswith(".gguf")


def _there(model: str, options: model_pb2.LoadOptions, server: ServerOptions) -> model_pb2.EstimateModelResponse:
    request = model_pb2.EstimateModelRequest(model=model, options=options)
    try:
        with connect(server) as connection:
            return connection.models.EstimateModel(request, timeout=connection.timeout_s, metadata=connection.metadata)
    except ServerError:
        if Path(model).exists():
            output.notice(f"{model} is here too; without a server: pomona fit ./{model}")
        raise


def _here(text: str, options: model_pb2.LoadOptions) -> model_pb2.EstimateModelResponse:
    """Look at a checkpoint of this machine.

    Raises:
        UsageError: an option is of no use for it.
        SetupError: this install has no worker.
        ServerError: it cannot be read, as a server would say it.
    """
    path = Path(text).expanduser().absolute()
    if not has_worker():
        raise SetupError("this install has no worker to read it: pip install 'pomona[worker]'")
    settings = {
        "context_tokens": options.context_tokens or None,
        "max_batch_rows": options.max_batch_rows or None,
        "kv_scheme": _checked_scheme(options.kv_scheme, path),
        "experts": experts_word(options.experts_mode),
        "expert_budget": options.expert_budget_bytes or None,
    }
    memory = machine_memory()
    try:
        response = asyncio.run(_ask(path, told_settings(settings, memory.budget_bytes)))
    except GatewayError as error:
        raise told(error) from error
    if options.context_tokens > response.options.context_tokens > 0:
        most = response.options.context_tokens
        raise UsageError(f"--context: {options.context_tokens} is over the {most} tokens of the checkpoint")
    add_room(response, memory)
    return response


async def _ask(path: Path, settings: dict[str, object]) -> model_pb2.EstimateModelResponse:
    one_shot = OneShot(worker_command("fit"), LIMIT_S, quiet_log(), asyncio.Semaphore(1))
    return await one_shot.ask(path.name, path, settings, model_pb2.EstimateModelResponse())


def _checked_scheme(text: str, path: Path) -> str | None:
    try:
        return checked_kv_scheme(text, path) if text else None
    except ValueError as error:
        raise UsageError(f"--kv-scheme {error}") from error
