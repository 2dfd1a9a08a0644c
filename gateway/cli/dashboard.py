"""The picture that `top` shows: the server, its models and its requests, cut to the height of the screen."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pomona.v1 import model_pb2, server_pb2
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gateway.cli import output
from gateway.cli.glance import Glance, cache_share, duration_text, keeping
from gateway.cli.models import state_name

STYLES = {"active": "green", "loading": "cyan", "queued": "yellow", "backing off": "yellow", "failed": "bold red"}
PRESSURE_STYLES = {"soft limit": "yellow", "hard limit": "bold red"}
BAR_WIDTH = 8
FIXED_LINES = 8  # the head, what parts the tables, their headings, and a line below each that is cut
LEAST_ROWS = 3  # of each table, however small the screen is


def picture(about: str, last: Glance | None, now: Glance, height: int | None) -> RenderableType:
    """Return what to show.

    Args:
        about: the server, in a line.
        last: the glance before, from which rates follow; None at first.
        now: the present one.
        height: lines of the screen, whose width is used too; None for a page, which has room for everything.
    """
    model_rows, request_rows = _room(now, height)
    models, requests = _models(last, now, model_rows), _requests(now.requests or (), request_rows)
    models.expand = requests.expand = height is not None
    nobody = "none in flight" if now.requests is not None else "not told to this caller"
    return Group(
        Text(output.printable(about), style="bold", no_wrap=True, overflow="ellipsis"),
        _server(now.server),
        Text(),
        models,
        *_below(len(now.models), model_rows, "no model is loaded"),
        Text(),
        requests,
        *_below(len(now.requests or ()), request_rows, nobody),
    )


def _room(now: Glance, height: int | None) -> tuple[int, int]:
    """Return how many models and requests are shown: half of the screen each, and more where the other needs less."""
    models, requests = len(now.models), len(now.requests or ())
    if height is None:
        return models, requests
    rows = max(2 * LEAST_ROWS, height - FIXED_LINES)
    model_rows = min(models, max(LEAST_ROWS, rows - min(requests, rows // 2)))
    return model_rows, max(LEAST_ROWS, rows - model_rows)


def _server(stats: server_pb2.ServerStats) -> Text:
    """Return the server's own line: memory, how it stands, what is open, how late its event loop is."""
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(f"memory {output.bytes_text(stats.footprint_bytes)}")
    if stats.reserved_bytes:
        share = min(1.0, stats.footprint_bytes / stats.reserved_bytes)
        filled = round(share * BAR_WIDTH)
        line.append(f" of {output.bytes_text(stats.reserved_bytes)} reserved ")
        line.append("█" * filled + "░" * (BAR_WIDTH - filled))
    if stats.memory_pressure:
        word = output.enum_word(server_pb2.MemoryPressure.Name, stats.memory_pressure, "MEMORY_PRESSURE_")
        line.append(f"  {word}", style=PRESSURE_STYLES.get(word, ""))
    line.append(f"  {stats.open_streams} in flight  lag {stats.event_loop_lag_us / 1000:.1f} ms")
    return line


def _models(last: Glance | None, now: Glance, most: int) -> Table:
    grid = _grid(("MODEL", 1), ("STATE", 0), ("MEMORY", -1), ("RUN", -1), ("WAIT", -1), ("CACHE", -1))
    for header in ("IN/S", "OUT/S"):
        grid.add_column(header, justify="right", no_wrap=True)
    grid.add_column("UNLOADS", no_wrap=True)
    shown = sorted(now.models, key=lambda model: (not model.workers, model.model))
    for model in shown[:most]:
        grid.add_row(*_model_row(model, last, now))
    return grid


def _model_row(model: model_pb2.Model, last: Glance | None, now: Glance) -> tuple[Text | str, ...]:
    word, memory, stats = state_name(model), model.memory.footprint_bytes, now.stats.get(model.model)
    first = (
        Text(output.printable(model.model)),
        Text(_state(model, word), style=STYLES.get(word, "")),
        output.bytes_text(memory) if memory else "",
    )
    if stats is None:
        return first
    before = last.stats.get(model.model) if last is not None else None
    between_s = now.time_s - last.time_s if last is not None else 0.0
    return (
        *first,
        str(stats.running_requests),
        str(stats.queued_requests),
        cache_share(stats),
        _rate(before and before.prompt_tokens_total, stats.prompt_tokens_total, between_s),
        _rate(before and before.completion_tokens_total, stats.completion_tokens_total, between_s),
        keeping(model),
    )


def _state(model: model_pb2.Model, word: str) -> str:
    """Return the state, of a load with how far it is."""
    progress = model.load_progress
    if word == "loading" and progress.bytes_total:
        return f"loading {progress.bytes_done / progress.bytes_total:.0%}"
    return word


def _rate(before: int | None, now: int, between_s: float) -> str:
    """Return how many a second came; nothing where that is not known, or a worker began anew."""
    if before is None or now < before or between_s <= 0:
        return ""
    return f"{(now - before) / between_s:.1f}"


def _requests(requests: Sequence[server_pb2.RequestInfo], most: int) -> Table:
    grid = _grid(("REQUEST", 0), ("MODEL", 1), ("METHOD", 0), ("STATE", 0), ("PROMPT", -1), ("ANSWER", -1), ("AGE", -1))
    for request in requests[:most]:
        age_s = max(0.0, time.time() - request.start_time.ToNanoseconds() / 1e9)
        grid.add_row(
            Text(output.printable(request.request_id)),
            Text(output.printable(request.model)),
            Text(request.method.rpartition("/")[2]),
            output.enum_word(server_pb2.RequestInfo.State.Name, request.state, "STATE_"),
            str(request.prompt_tokens),
            str(request.completion_tokens),
            duration_text(age_s),
        )
    return grid


def _below(count: int, shown: int, nothing: str) -> list[Text]:
    """Return the line below a table that does not show everything, or has nothing to show."""
    if not count:
        return [Text(nothing, style="dim")]
    return [Text(f"and {count - shown} more", style="dim")] if count > shown else []


def _grid(*columns: tuple[str, int]) -> Table:
    """Return a table: columns that take what is left of a screen have 1, numbers -1."""
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for header, kind in columns:
        grid.add_column(
            header,
            ratio=1 if kind == 1 else None,
            justify="right" if kind < 0 else "left",
            no_wrap=True,
            overflow="ellipsis",
            max_width=18 if header == "REQUEST" else None,
        )
    return grid
