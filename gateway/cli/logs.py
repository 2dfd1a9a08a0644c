"""`logs`: what the server and its workers wrote."""

from typing import Annotated

import typer
from pomona.v1 import server_pb2

from gateway.cli import output
from gateway.cli.connection import ServerOptions, connect
from gateway.cli.verb import JsonFlag, verb

DEFAULT_LINES = 100
LEVEL_STYLES = {"debug": "dim", "warning": "yellow", "error": "bold red"}


@verb
def logs(
    *,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Only lines of this model's workers.")] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines until Ctrl-C.")] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, max=1000, help="How many past lines come first.")
    ] = DEFAULT_LINES,
    server: ServerOptions,
    as_json: JsonFlag = False,
) -> None:
    """Print the log lines of the server and its workers.

    With --json: one pomona.v1.StreamLogsResponse a line in protobuf's JSON
    form; where a failure or Ctrl-C ended them, the last line is {"error": ...}.
    """
    request = server_pb2.StreamLogsRequest(model=model, past_lines=lines, follow=follow)
    with connect(server) as connection:
        call = connection.admin.StreamLogs(
            request,
            timeout=connection.timeout_s if follow else connection.query_timeout_s,
            metadata=connection.metadata,
        )
        try:
            for entry in call:
                if as_json:
                    output.emit(entry)
                else:
                    _print(entry)
        finally:
            call.cancel()


def _print(entry: server_pb2.StreamLogsResponse) -> None:
    if entry.dropped_lines:
        output.notice(f"({entry.dropped_lines} lines were dropped)")
    time = entry.time.ToDatetime().strftime("%H:%M:%S.%f")[:-3]
    source = f"{entry.model} {entry.instance_id}".strip() or "gateway"
    fields = " ".join(f"{key}={value}" for key, value in sorted(entry.fields.items()))
    output.styled(
        f"{time} {entry.level:<7} {source}: {entry.message} {fields}".rstrip(), LEVEL_STYLES.get(entry.level, "")
    )
