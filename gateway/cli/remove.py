"""`rm`: a model out of the hub's cache, on this machine or where a server runs."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer
from pomona.v1 import model_pb2

from gateway.cli import output
from gateway.cli.connection import ServerOptions, connect, names_server
from gateway.cli.failures import CliError, ServerError, ServerNotReachedError, SetupError, UsageError
from gateway.cli.gateway_failure import told
from gateway.cli.hub_cache import hub_cache
from gateway.cli.models import every_model
from gateway.cli.suggestions import closest_first, suggestion
from gateway.cli.verb import JsonFlag, verb
from gateway.errors import ModelInUse
from gateway.hub.cache import CachedModel, cached_models, remove

# A server that is asked in passing answers at once, or is not asked.
ASK_LIMIT_S = 2.0


class NotCachedError(CliError):
    """Raised when the hub's cache has no model of the name that was given; `known` are those it has."""

    code = "NOT_FOUND"
    reason = "MODEL_NOT_FOUND"
    most_listed = 10

    def __init__(self, name: str, known: Sequence[str]) -> None:
        listed = closest_first(name, known)[: self.most_listed]
        others = f"; there are: {', '.join(listed)}{suggestion(name, known)}" if listed else ", which is empty"
        super().__init__(f"no model {name} is in the hub's cache{others}")


@verb
def rm(
    *,
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    server: ServerOptions,
    as_json: JsonFlag = False,
) -> None:
    """Remove a downloaded model from the hub's cache.

    All that the cache has of its repository goes, other revisions too, unless
    more models of it were pulled. A model that a running server has loaded
    stays. Without --server (or POMONA_SERVER) it is removed on this machine.

    With --json: a pomona.v1.DeleteModelResponse in protobuf's JSON form.
    """
    if names_server(context):
        _ask(f"remove {model} on {server.server}?", yes=yes)
        request = model_pb2.DeleteModelRequest(model=model)
        with connect(server) as connection:
            response = connection.models.DeleteModel(
                request, timeout=connection.timeout_s, metadata=connection.metadata
            )
    else:
        response = _here(model, server, yes=yes)
    if as_json:
        output.emit(response, indent=2)
    else:
        output.line(f"{model} is gone, {output.bytes_text(response.freed_bytes)} freed")


def _here(name: str, server: ServerOptions, *, yes: bool) -> model_pb2.DeleteModelResponse:
    """Remove a model of this machine.

    Raises:
        NotCachedError: there is none of this name.
        ServerError: a server has it loaded.
        SetupError: its files cannot be removed.
    """
    cached = {model.name: model for model in cached_models(hub_cache())}
    model = cached.get(name)
    if model is None:
        raise NotCachedError(name, list(cached))
    _ask(f"remove {name}, {output.bytes_text(model.size_bytes())}?", yes=yes)
    is_there = _check_unloaded(model, server)
    try:
        freed_bytes = remove(hub_cache(), model)
    except OSError as error:
        raise SetupError(f"{name} cannot be removed whole: {error.strerror}") from error
    if is_there:
        _refresh(server)
    return model_pb2.DeleteModelResponse(freed_bytes=freed_bytes)


def _ask(question: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("nobody can be asked here; --yes removes it all the same")
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)


def _check_unloaded(model: CachedModel, server: ServerOptions) -> bool:
    """Refuse to remove a model that the server of this machine has loaded, and return whether there is a server."""
    try:
        with connect(replace(server, timeout=ASK_LIMIT_S)) as connection:
            loaded = {one.model for one in every_model(connection, loaded_only=True)}
    except ServerNotReachedError:
        return False
    except ServerError as error:
        output.notice(f"whether a server has it loaded is not known: {error}")
        return False
    if model.name in loaded:
        raise told(ModelInUse(model.name, "loaded"))
    return True


def _refresh(server: ServerOptions) -> None:
    """Have a server of this machine see that the model is gone."""
    try:
        with connect(replace(server, timeout=ASK_LIMIT_S)) as connection:
            request = model_pb2.RefreshCatalogueRequest()
            connection.models.RefreshCatalogue(request, timeout=ASK_LIMIT_S, metadata=connection.metadata)
    except ServerError as error:
        output.notice(f"the server at {server.server} still lists it: {error}")
