"""`adapters`: the LoRA adapters of a model, listed, loaded and unloaded."""

from collections.abc import Iterator
from typing import Annotated

import typer
from pomona.v1 import model_pb2

from gateway.cli import output
from gateway.cli.connection import Connection, ServerOptions, connect
from gateway.cli.verb import JsonFlag, verb

Model = Annotated[str, typer.Argument(metavar="MODEL")]
Adapter = Annotated[str, typer.Argument(metavar="ADAPTER")]

REVISION_CHARS = 12  # of the table: enough to tell two apart

GROUP = typer.Typer(
    add_completion=False,
    rich_markup_mode="rich",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@GROUP.callback()
def adapters() -> None:
    """List, load and unload the LoRA adapters of a model."""


@verb
def list_adapters(*, model: Model, server: ServerOptions, as_json: JsonFlag = False) -> None:
    """List a model's adapters: in its folder, loaded, or wanted and failed.

    It loads nothing.

    With --json: {"adapters": [...]}, each a pomona.v1.Adapter in protobuf's
    JSON form.
    """
    with connect(server) as connection:
        found = list(every_adapter(connection, model))
    if as_json:
        output.emit({"adapters": [output.as_dict(one) for one in found]}, indent=2)
    elif found:
        _print(found)
    else:
        output.notice(f"{model} has no adapters: its adapters_folder in the server's settings is empty or not set")


@verb
def load(
    *,
    model: Model,
    adapter: Adapter,
    source: Annotated[
        str, typer.Option(metavar="NAME", help="Its name in the model's folder of adapters, if it is another.")
    ] = "",
    pin: Annotated[bool, typer.Option("--pin/--no-pin", help="It may not go for others.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Take the place of other content of that name.")] = False,
    sha256: Annotated[str, typer.Option(metavar="DIGITS", help="That the file of its weights must have.")] = "",
    server: ServerOptions,
    as_json: JsonFlag = False,
) -> None:
    """Load an adapter of the model's folder, while requests run.

    Workers that follow this model's worker begin with it, until it is unloaded
    or the server ends. The model is loaded where it is not.

    With --json: a pomona.v1.LoadAdapterResponse in protobuf's JSON form.
    """
    request = model_pb2.LoadAdapterRequest(
        model=model, adapter=adapter, source=source, pinned=pin, replace=replace, expected_sha256=sha256
    )
    with connect(server) as connection:
        response = connection.adapters.LoadAdapter(request, timeout=connection.timeout_s, metadata=connection.metadata)
    if as_json:
        output.emit(response, indent=2)
        return
    told = response.adapter
    how = "was loaded already" if response.already_loaded else "is loaded"
    skipped = f", {output.counted(told.skipped_tensors, 'tensor')} left out" if told.skipped_tensors else ""
    size = f"{output.counted(told.mounted_layers, 'layer')} of rank {told.rank}"
    output.line(f"{told.adapter}@{told.revision} {how}: {size}, {output.bytes_text(told.memory_bytes)}{skipped}")


@verb
def unload(*, model: Model, adapter: Adapter, server: ServerOptions, as_json: JsonFlag = False) -> None:
    """Unload an adapter, once the requests that use it have ended.

    It waits for them as long as --timeout says, or 30 seconds; where they go on
    for longer, the adapter stays.

    With --json: a pomona.v1.UnloadAdapterResponse in protobuf's JSON form.
    """
    request = model_pb2.UnloadAdapterRequest(model=model, adapter=adapter)
    with connect(server) as connection:
        response = connection.adapters.UnloadAdapter(
            request, timeout=connection.timeout_s, metadata=connection.metadata
        )
    if as_json:
        output.emit(response, indent=2)
    else:
        freed = f", {output.bytes_text(response.freed_bytes)} freed" if response.freed_bytes else ""
        output.line(f"{adapter} is unloaded{freed}")


for _name, _function in (("list", list_adapters), ("load", load), ("unload", unload)):
    GROUP.command(_name)(_function)


def every_adapter(connection: Connection, model: str) -> Iterator[model_pb2.Adapter]:
    """Yield the adapters of a model, page by page."""
    request = model_pb2.ListAdaptersRequest(model=model)
    while True:
        page = connection.adapters.ListAdapters(
            request, timeout=connection.query_timeout_s, metadata=connection.metadata
        )
        yield from page.adapters
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token


def _print(found: list[model_pb2.Adapter]) -> None:
    headers = ("ADAPTER", "STATE", "REVISION", "RANK", "SCALE", "MEMORY", "SERVED", "PINNED")
    output.table(headers, [_row(one) for one in found])
    for one in found:
        if one.HasField("failure"):
            output.notice(f"{one.adapter}: {one.failure.reason} {one.failure.message}".strip())


def _row(adapter: model_pb2.Adapter) -> tuple[str, ...]:
    return (
        adapter.adapter,
        output.enum_word(model_pb2.AdapterState.Name, adapter.state, "ADAPTER_STATE_"),
        adapter.revision[:REVISION_CHARS],
        str(adapter.rank or ""),
        f"{adapter.scale:g}" if adapter.rank else "",
        output.bytes_text(adapter.memory_bytes) if adapter.memory_bytes else "",
        str(adapter.request_count) if adapter.rank else "",
        "yes" if adapter.pinned else "",
    )
