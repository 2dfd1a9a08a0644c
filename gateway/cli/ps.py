"""`ps`: the models that are loaded, or about to be, and what they do."""

from __future__ import annotations

from typing import Annotated

import typer
from pomona.v1 import model_pb2, server_pb2

from gateway.cli import output
from gateway.cli.connection import ServerOptions, connect
from gateway.cli.glance import Glance, age_s, cache_share, duration_text, glance, keeping
from gateway.cli.models import state_name
from gateway.cli.verb import JsonFlag, verb

HEADERS = ("MODEL", "STATE", "PID", "MEMORY", "RUNNING", "QUEUED", "CACHE", "TOKENS/S", "RESTARTS", "UP", "UNLOADS")


@verb
def ps(
    *,
    server: ServerOptions,
    every: Annotated[bool, typer.Option("--all", "-a", help="Those that are not loaded too.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """List the models that are loaded, wait, load or failed, and what they do.

    CACHE is how much of the room for keys and values is in use, TOKENS/S the
    output while there is any, UNLOADS when an idle model goes.

    With --json: {"server": pomona.v1.ServerStats, "models": [{"model":
    pomona.v1.Model, "stats": pomona.v1.ModelStats or null}, ...], "requests":
    [pomona.v1.RequestInfo, ...] or null} in protobuf's JSON form.
    """
    with connect(server) as connection:
        seen = glance(connection, every=every)
    if as_json:
        output.emit(seen.as_dict(), indent=2)
    elif not seen.models:
        output.notice("no models" if every else "no model is loaded")
    else:
        _print(seen)


def _print(seen: Glance) -> None:
    rows = [_row(model, seen.stats.get(model.model)) for model in seen.models]
    held = [index for index in range(len(HEADERS)) if index < 4 or any(row[index] for row in rows)]
    output.table([HEADERS[index] for index in held], [[row[index] for index in held] for row in rows])
    for model in seen.models:
        if model.waiting_for:
            output.notice(f"{model.model}: waits for {model.waiting_for}")
        if model.HasField("failure"):
            output.notice(f"{model.model}: {model.failure.reason} {model.failure.message}".strip())


def _row(model: model_pb2.Model, stats: server_pb2.ModelStats | None) -> tuple[str, ...]:
    up_s = age_s(model)
    memory = model.memory.footprint_bytes
    first = (
        model.model,
        state_name(model),
        str(model.workers[0].pid) if model.workers else "",
        output.bytes_text(memory) if memory else "",
    )
    counted = ("",) * 5 if stats is None else _counted(stats)
    return (*first, *counted, "" if up_s is None else duration_text(up_s), keeping(model))


def _counted(stats: server_pb2.ModelStats) -> tuple[str, ...]:
    rate = stats.decode_tokens_per_second
    return (
        str(stats.running_requests),
        str(stats.queued_requests),
        cache_share(stats),
        f"{rate:.1f}" if rate else "",
        str(stats.restarts_total) if stats.restarts_total else "",
    )
