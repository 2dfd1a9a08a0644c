"""`top`: what a server does, again and again."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from pomona.v1 import server_pb2
from rich.console import Console
from rich.live import Live

from gateway.cli import output
from gateway.cli.connection import Connection, ServerOptions, connect
from gateway.cli.dashboard import picture
from gateway.cli.glance import duration_text, glance
from gateway.cli.verb import JsonFlag, verb

DEFAULT_INTERVAL_S = 1.0


@verb
def top(
    *,
    server: ServerOptions,
    interval: Annotated[
        float, typer.Option("--interval", "-i", min=0.2, max=3600, metavar="SECONDS", help="Between two looks.")
    ] = DEFAULT_INTERVAL_S,
    once: Annotated[bool, typer.Option("--once", help="Look once, print it and end.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Watch the models and requests of a server until Ctrl-C.

    IN/S and OUT/S are prompt and output tokens a second since the look
    before. Where standard output is no terminal it is printed once.

    With --json: once, as of `pomona ps --json`.
    """
    with connect(server) as connection:
        screen = output.console()
        if as_json:
            output.emit(glance(connection).as_dict(), indent=2)
        elif once or not screen.is_terminal:
            output.page(picture(_about(connection), None, glance(connection), None))
        else:
            _watch(connection, screen, interval)


def _watch(connection: Connection, screen: Console, interval_s: float) -> None:
    """Show one picture after the other; Ctrl-C is how that ends."""
    last = None
    try:
        with Live(console=screen, screen=True, auto_refresh=False) as live:
            while True:
                began_s = time.monotonic()
                now = glance(connection)
                live.update(picture(_about(connection), last, now, screen.height), refresh=True)
                last = now
                time.sleep(max(0.0, interval_s - (time.monotonic() - began_s)))
    except KeyboardInterrupt:
        return


def _about(connection: Connection) -> str:
    """Return which server it is, in a line."""
    info = connection.server.GetServerInfo(
        server_pb2.GetServerInfoRequest(), timeout=connection.query_timeout_s, metadata=connection.metadata
    )
    up_s = time.time() - info.start_time.ToNanoseconds() / 1e9
    facts = [f"pomona {info.version}".strip(), f"at {connection.address}", f"up {duration_text(up_s)}"]
    return "  ".join((*facts, info.device)).rstrip()
