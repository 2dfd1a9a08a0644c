"""`requests` and `cancel`: what is running on the server."""

import time
from typing import Annotated

import typer
from pomona.v1 import server_pb2

from gateway.cli import output
from gateway.cli.connection import Connection, ServerOptions, connect
from gateway.cli.failures import NotInFlightError
from gateway.cli.verb import JsonFlag, verb


@verb
def requests(
    *,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Only those of this model.")] = "",
    server: ServerOptions,
    as_json: JsonFlag = False,
) -> None:
    """List the requests in flight.

    With --json: {"requests": [...]}, each a pomona.v1.RequestInfo in
    protobuf's JSON form.
    """
    with connect(server) as connection:
        response = _in_flight(connection, model)
    if as_json:
        output.emit(response, indent=2)
    elif not response.requests:
        output.notice("no requests in flight")
    else:
        headers = ("REQUEST", "MODEL", "METHOD", "STATE", "PROMPT", "ANSWER", "AGE", "CALLER")
        output.table(headers, [_row(each) for each in response.requests])


@verb
def cancel(
    *,
    request_id: Annotated[str, typer.Argument(metavar="REQUEST_ID", help="As `pomona requests` shows it.")],
    server: ServerOptions,
    as_json: JsonFlag = False,
) -> None:
    """End a request by its id.

    One that is not in flight, because it has finished already or never was,
    is a failure that lists those that are.

    With --json: a pomona.v1.CancelRequestResponse in protobuf's JSON form.
    """
    with connect(server) as connection:
        response = connection.admin.CancelRequest(
            server_pb2.CancelRequestRequest(request_id=request_id),
            timeout=connection.query_timeout_s,
            metadata=connection.metadata,
        )
        if response.outcome == server_pb2.CancelRequestResponse.OUTCOME_ALREADY_FINISHED:
            running = _in_flight(connection).requests
            raise NotInFlightError(request_id, [each.request_id for each in running])
    if as_json:
        output.emit(response, indent=2)
    else:
        output.line(f"{request_id} is cancelled")


def _in_flight(connection: Connection, model: str = "") -> server_pb2.ListRequestsResponse:
    return connection.admin.ListRequests(
        server_pb2.ListRequestsRequest(model=model),
        timeout=connection.query_timeout_s,
        metadata=connection.metadata,
    )


def _row(request: server_pb2.RequestInfo) -> tuple[str, ...]:
    age_s = max(0.0, time.time() - request.start_time.ToNanoseconds() / 1e9)
    return (
        request.request_id,
        request.model,
        request.method.rpartition("/")[2],
        output.enum_word(server_pb2.RequestInfo.State.Name, request.state, "STATE_"),
        str(request.prompt_tokens),
        str(request.completion_tokens),
        f"{age_s:.1f} s",
        request.principal,
    )
