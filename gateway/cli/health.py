"""`health`: whether a server, or a model of it, takes requests; for scripts, containers and service managers."""

import time
from typing import Annotated, Any

import grpc
import typer
from grpc_health.v1 import health_pb2

from gateway.cli import output
from gateway.cli.connection import Connection, ServerOptions, connect
from gateway.cli.failures import CliError, failure_of
from gateway.cli.verb import JsonFlag, verb

CHECK_TIMEOUT_S = 5.0
PAUSE_S = 0.25
MAX_WAIT_S = 3600.0
SERVING = "SERVING"


class NotServingError(CliError):
    """Raised when the server answers that it does not take requests, or not for this model."""

    code = "UNAVAILABLE"
    reason = "NOT_SERVING"


@verb
def health(
    *,
    model: Annotated[str, typer.Argument(metavar="[MODEL]", help="A model; without one, the server.")] = "",
    wait: Annotated[
        float,
        typer.Option(min=0.0, max=MAX_WAIT_S, metavar="SECONDS", help="Wait so long until it takes requests."),
    ] = 0.0,
    server: ServerOptions,
    as_json: JsonFlag = False,
) -> None:
    """Tell whether a server, or a model of it, takes requests.

    Prints SERVING and exits with 0 where it does. A server that drains, or
    that nobody answers for, is exit status 1. A model that is not loaded and
    can be is SERVING. No token is needed, but for a model of a server that
    wants tokens.

    With --json: {"status": "SERVING"}, or {"error": ...}.

    Example:
    [bold]pomona health --wait 60 && echo up[/bold]
    """
    until_s = time.monotonic() + wait
    with connect(server) as connection:
        while True:
            failure = _failure(connection, model)
            if failure is None:
                output.emit({"status": SERVING}) if as_json else output.line(SERVING)
                return
            if time.monotonic() + PAUSE_S > until_s:
                raise failure
            time.sleep(PAUSE_S)


def _failure(connection: Connection, model: str) -> CliError | None:
    """Ask once; return why requests are not taken, None where they are."""
    timeout_s = CHECK_TIMEOUT_S if connection.timeout_s is None else connection.timeout_s
    request = health_pb2.HealthCheckRequest(service=model)
    try:
        answer: Any = connection.health.Check(request, timeout=timeout_s, metadata=connection.metadata)
    except grpc.RpcError as error:
        return failure_of(error, connection.address)
    if answer.status == health_pb2.HealthCheckResponse.SERVING:
        return None
    return NotServingError(
        f"{model or 'the server'} is {health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)}"
    )
