"""`version`: of this command, and of the server that it would talk to."""

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version

from google.protobuf.json_format import MessageToDict
from pomona.v1 import server_pb2

from gateway.cli import output
from gateway.cli.connection import ServerOptions, connect
from gateway.cli.failures import ServerError
from gateway.cli.verb import JsonFlag, verb

TIMEOUT_S = 2.0


@verb
def version(*, server: ServerOptions, as_json: JsonFlag = False) -> None:
    """Print the versions of this command and of the server.

    A server that does not answer is no failure.

    With --json: {"command": "0.1.0", "server": ...}, the server's part a
    pomona.v1.GetServerInfoResponse in protobuf's JSON form, or null.
    """
    command = _command_version()
    try:
        with connect(server) as connection:
            info = connection.server.GetServerInfo(
                server_pb2.GetServerInfoRequest(),
                timeout=TIMEOUT_S if connection.timeout_s is None else connection.timeout_s,
                metadata=connection.metadata,
            )
    except ServerError:
        info = None
    if as_json:
        document = MessageToDict(info, always_print_fields_with_no_presence=True) if info else None
        output.emit({"command": command, "server": document}, indent=2)
        return
    output.line(f"pomona {command}")
    if info is None:
        output.line(f"server {server.server}: no answer")
    else:
        details = ", ".join(part for part in (info.device, f"MLX {info.mlx_version}" * bool(info.mlx_version)) if part)
        output.line(f"server {server.server}: {info.version}" + (f" ({details})" if details else ""))


def _command_version() -> str:
    try:
        return installed_version("pomona")
    except PackageNotFoundError:
        return "(not installed)"
