"""`load` and `unload`: a model's life on the server."""

from typing import Annotated

import grpc
import typer
from pomona.v1 import model_pb2

from gateway.cli import fit_table, output
from gateway.cli.connection import Connection, ServerOptions, connect
from gateway.cli.expert_options import ExpertBudget, Experts, expert_options
from gateway.cli.failures import ServerError
from gateway.cli.models import state_name
from gateway.cli.progress import Display
from gateway.cli.progress import display as display_for
from gateway.cli.spans import duration
from gateway.cli.verb import JsonFlag, verb

KvScheme = Annotated[
    str,
    typer.Option(
        metavar="SCHEME",
        help="none, 8, 4, config, or turbo:kNvM (N is 2, 4, 5 or 8; M 2, 3, 4, 5 or 8); turbo is turbo:k8v3."
        " Then :g32, :g64 or :g128 behind 8 and 4, and :s<start>, as in 4:g32:s512.",
    ),
]


@verb
def load(
    *,
    model: Annotated[str, typer.Argument(metavar="MODEL")],
    context_tokens: Annotated[int | None, typer.Option(min=1, help="Longest prompt and answer together.")] = None,
    max_batch_rows: Annotated[int | None, typer.Option(min=1, help="Requests that run side by side.")] = None,
    kv_scheme: KvScheme = "",
    experts: Experts = "",
    expert_budget: ExpertBudget = "",
    pin: Annotated[
        bool | None, typer.Option("--pin/--no-pin", help="It stays, whatever others need and however idle it is.")
    ] = None,
    idle_ttl: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="It goes when nobody used it for so long.")
    ] = None,
    evict: Annotated[
        bool, typer.Option("--evict/--no-evict", help="Whether idle models may go to make room for it.")
    ] = True,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Return when it is ready, or at once.")] = True,
    server: ServerOptions,
    as_json: JsonFlag = False,
) -> None:
    """Load a model, with progress.

    Where there is no memory for it, it waits until there is. What is chosen
    here holds until the model is unloaded by `pomona unload`.

    Ctrl-C stops the waiting and not the loading. With other options than it
    runs with, a loaded model is loaded anew: its running requests may finish,
    for as long as the server's grace. What may not fit this machine once it
    is in full use is told, and loaded all the same.

    Progress goes to standard error: a bar on a terminal, lines elsewhere.

    With --json: a line for each step, {"progress": {"state", "phase",
    "bytesDone", "bytesTotal", "bytesPerSecond"}}; the last is {"model": ...},
    a pomona.v1.Model in protobuf's JSON form, or {"error": ...}.
    """
    options = model_pb2.LoadOptions(context_tokens=context_tokens, max_batch_rows=max_batch_rows, kv_scheme=kv_scheme)
    options.MergeFrom(expert_options(experts, expert_budget))
    request = model_pb2.LoadModelRequest(model=model, return_immediately=not wait, pinned=pin)
    if idle_ttl is not None:
        request.idle_ttl.CopyFrom(duration("--idle-ttl", idle_ttl))
    if not evict:
        request.allow_eviction = False
    if options.ByteSize():
        request.options.CopyFrom(options)
    with connect(server) as connection:
        _warn_of_memory(connection, request)
        try:
            loaded = load_with_progress(connection, request, display_for(model, as_json=as_json) if wait else None)
        except KeyboardInterrupt:
            output.notice(f"the server goes on loading {model}; to stop it: pomona unload {model}")
            raise
    if as_json:
        output.emit(model_pb2.LoadModelResponse(model=loaded))
    else:
        output.line(f"{loaded.model} is {state_name(loaded)}")


@verb
def unload(
    *,
    model: Annotated[str, typer.Argument(metavar="MODEL")],
    grace: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="How long running requests may finish.")
    ] = None,
    server: ServerOptions,
    as_json: JsonFlag = False,
) -> None:
    """Unload a model and give its memory back.

    It returns when the worker process is gone.

    With --json: a pomona.v1.UnloadModelResponse in protobuf's JSON form.
    """
    request = model_pb2.UnloadModelRequest(model=model)
    if grace is not None:
        request.grace.CopyFrom(duration("--grace", grace))
    with connect(server) as connection:
        response = connection.models.UnloadModel(request, timeout=connection.timeout_s, metadata=connection.metadata)
    if as_json:
        output.emit(response, indent=2)
    else:
        freed = f", {output.bytes_text(response.freed_bytes)} freed" if response.freed_bytes else ""
        output.line(f"{response.model.model or model} is {state_name(response.model)}{freed}")


def load_with_progress(
    connection: Connection, request: model_pb2.LoadModelRequest, display: Display | None = None
) -> model_pb2.Model:
    """Load a model, and have `display` show what the server says of it meanwhile; it is closed at the end."""
    call = connection.models.LoadModel.future(request, timeout=connection.timeout_s, metadata=connection.metadata)
    try:
        if display is not None:
            _show_until_done(connection, request.model, call, display)
        return call.result().model
    finally:
        call.cancel()


def _warn_of_memory(connection: Connection, request: model_pb2.LoadModelRequest) -> None:
    """Say it where the model may need more than all models have; where nobody can tell, the load will."""
    question = model_pb2.EstimateModelRequest(model=request.model, options=request.options)
    try:
        response = connection.models.EstimateModel(
            question, timeout=connection.query_timeout_s, metadata=connection.metadata
        )
    except (grpc.RpcError, ServerError):
        return
    if not fit_table.fits(response) and response.estimate.total_bytes > response.estimate.budget_bytes:
        most, room = (
            output.bytes_text(each) for each in (response.estimate.total_bytes, response.estimate.budget_bytes)
        )
        output.notice(
            f"warning: {request.model} may take {most}, models together {room} here;"
            f" pomona fit {request.model} tells what of that to lower"
        )


def _show_until_done(
    connection: Connection, model: str, call: "grpc.Future[model_pb2.LoadModelResponse]", display: Display
) -> None:
    watch = connection.models.WatchModels(
        model_pb2.WatchModelsRequest(models=[model]), timeout=connection.timeout_s, metadata=connection.metadata
    )

    def stop_watching(_: object) -> None:
        watch.cancel()

    call.add_done_callback(stop_watching)
    try:
        for message in watch:
            if message.HasField("updated"):
                display.update(message.updated)
    except grpc.RpcError:
        # Ended by the callback above, or the server cannot show progress: the load's own result says what matters.
        return
    finally:
        watch.cancel()
        display.close()
