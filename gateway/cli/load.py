"""`load` and `unload`: a model's life on the server."""

from typing import Annotated

import grpc
import typer
from google.protobuf.duration_pb2 import Duration
from pomona.v1 import model_pb2
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, TransferSpeedColumn

from gateway.cli import output
from gateway.cli.connection import Connection, ServerOptions, connect
from gateway.cli.models import state_name
from gateway.cli.verb import JsonFlag, verb


@verb
def load(
    *,
    model: Annotated[str, typer.Argument(metavar="MODEL")],
    context_tokens: Annotated[int | None, typer.Option(min=1, help="Longest prompt and answer together.")] = None,
    max_batch_rows: Annotated[int | None, typer.Option(min=1, help="Requests that run side by side.")] = None,
    kv_scheme: Annotated[
        str,
        typer.Option(
            metavar="SCHEME", help="none, 8, 4, config, or turbo:k<2,4,5,8>v<2,3,4,5,8>; turbo is turbo:k8v3."
        ),
    ] = "",
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Return when it is ready, or at once.")] = True,
    server: ServerOptions,
    as_json: JsonFlag = False,
) -> None:
    """Load a model, with progress.

    Ctrl-C stops the waiting and not the loading. With other options than it
    runs with, a loaded model is loaded anew: its running requests may finish,
    for as long as the server's grace.

    With --json: the pomona.v1.Model that came of it in protobuf's JSON form,
    and no progress.
    """
    options = model_pb2.LoadOptions(context_tokens=context_tokens, max_batch_rows=max_batch_rows, kv_scheme=kv_scheme)
    request = model_pb2.LoadModelRequest(model=model, return_immediately=not wait)
    if options.ByteSize():
        request.options.CopyFrom(options)
    with connect(server) as connection:
        try:
            loaded = load_with_progress(connection, request, show=wait and not as_json)
        except KeyboardInterrupt:
            output.notice(f"the server goes on loading {model}; to stop it: pomona unload {model}")
            raise
    if as_json:
        output.emit(loaded, indent=2)
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
        request.grace.CopyFrom(_duration(grace))
    with connect(server) as connection:
        response = connection.models.UnloadModel(request, timeout=connection.timeout_s, metadata=connection.metadata)
    if as_json:
        output.emit(response, indent=2)
    else:
        freed = f", {output.bytes_text(response.freed_bytes)} freed" if response.freed_bytes else ""
        output.line(f"{response.model.model or model} is {state_name(response.model)}{freed}")


def load_with_progress(
    connection: Connection, request: model_pb2.LoadModelRequest, *, show: bool = True
) -> model_pb2.Model:
    """Load a model; meanwhile show on standard error what the server says of it."""
    call = connection.models.LoadModel.future(request, timeout=connection.timeout_s, metadata=connection.metadata)
    try:
        if show:
            _show_until_done(connection, request.model, call)
        return call.result().model
    finally:
        call.cancel()


def _show_until_done(connection: Connection, model: str, call: "grpc.Future[model_pb2.LoadModelResponse]") -> None:
    watch = connection.models.WatchModels(
        model_pb2.WatchModelsRequest(models=[model]), timeout=connection.timeout_s, metadata=connection.metadata
    )

    def stop_watching(_: object) -> None:
        watch.cancel()

    call.add_done_callback(stop_watching)
    try:
        with _LoadDisplay(model) as display:
            for message in watch:
                if message.HasField("updated"):
                    display.update(message.updated)
    except grpc.RpcError:
        # Ended by the callback above, or the server cannot show progress: the load's own result says what matters.
        return
    finally:
        watch.cancel()


class _LoadDisplay:
    """A bar with bytes and rate on a terminal; elsewhere a line for every new phase."""

    def __init__(self, model: str) -> None:
        console = output.console(stderr=True)
        self._model = model
        self._lines = not console.is_terminal
        self._last = ""
        self._total = 0
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=self._lines,
        )
        self._task = self._progress.add_task(f"{model}: waiting", total=None)

    def __enter__(self) -> "_LoadDisplay":
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def update(self, model: model_pb2.Model) -> None:
        """Show the state and the bytes of `model`."""
        progress = model.load_progress
        words = progress.phase or model.waiting_for or state_name(model)
        if words != self._last:
            self._last = words
            if self._lines:
                output.notice(f"{self._model}: {words}")
        self._total = progress.bytes_total or self._total
        # The last word of a load comes without bytes.
        done = self._total if model.state == model_pb2.MODEL_STATE_ACTIVE else progress.bytes_done
        self._progress.update(
            self._task, description=f"{self._model}: {words}", total=self._total or None, completed=done
        )


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromMicroseconds(round(seconds * 1_000_000))
    return duration
