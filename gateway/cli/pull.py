"""`pull`: a checkpoint from the hub into its cache, on this machine or where a server runs."""

import asyncio
from typing import Annotated

import typer
from google.rpc import code_pb2
from pomona.v1 import model_pb2

from gateway.catalogue import CatalogueModel
from gateway.cli import output
from gateway.cli.connection import ServerOptions, connect, names_server
from gateway.cli.failures import ServerError, StatusFacts, UsageError
from gateway.cli.gateway_failure import told
from gateway.cli.hub_cache import REVISION_CHARS, hub_cache
from gateway.cli.own_worker import has_worker, quiet_log, worker_command
from gateway.cli.pull_progress import PullDisplay
from gateway.cli.verb import JsonFlag, verb
from gateway.describe import Describer
from gateway.errors import GatewayError
from gateway.hub.cache import cached_models
from gateway.hub.download import Downloader, pull_command
from gateway.hub.messages import Done, Order, Progress
from gateway.settings import process_environment
from gateway.status import failure_of

DESCRIBE_LIMIT_S = 60.0
ARGUMENTS = {"repository": "ORG/NAME", "revision": "@REVISION", "name": "--name", "file": "--file"}


@verb
def pull(
    *,
    context: typer.Context,
    repository: Annotated[str, typer.Argument(metavar="ORG/NAME[@REVISION]")],
    name: Annotated[str, typer.Option(metavar="NAME", help="Its name in the catalogue. Default: ORG/NAME.")] = "",
    file: Annotated[
        str, typer.Option(metavar="NAME.gguf", help="Have this GGUF file instead of the safetensors.")
    ] = "",
    server: ServerOptions,
    as_json: JsonFlag = False,
) -> None:
    """Download a model from the hub into its cache.

    Without --server (or POMONA_SERVER) this machine downloads, and servers
    that are started here list the model; a running one does so after:
    pomona models --refresh. With --server that server downloads and lists it.

    Only what is served is downloaded: safetensors, JSON, templates, tokenizer
    files, and Whisper in CTranslate2's form. Other formats are named and left
    out. What came is kept when it breaks off, or Ctrl-C ends it: the same
    command goes on from there. HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN
    and HF_HUB_OFFLINE hold, on the machine that downloads.

    The exit code is 1 also where the model is there and cannot be served.

    With --json: lines {"progress": {"phase", "file", "bytesDone",
    "bytesTotal"}}; the last is {"model": ...}, a pomona.v1.Model in
    protobuf's JSON form, or {"error": ...}.
    """
    order = _order(repository, name, file)
    display = PullDisplay(order.model, as_json=as_json)
    try:
        model = _there(order, server, display) if names_server(context) else _here(order, display)
    except KeyboardInterrupt:
        output.notice("what came is kept; the same command goes on from there")
        raise
    finally:
        display.close()
    if as_json:
        output.emit({"model": output.as_dict(model)})
    if model.HasField("failure"):
        output.notice(f"{order.model} is in the cache; to remove it: pomona rm {order.model}")
        failure = model.failure
        code = code_pb2.Code.Name(failure.code)
        raise ServerError(StatusFacts(code, failure.message, failure.reason, dict(failure.metadata)))
    if not as_json:
        facts = ", ".join(fact for fact in (model.architecture, model.quantization) if fact)
        output.line(f"{model.model} is in the cache{f': {facts}' if facts else ''}")


def _order(text: str, name: str, file: str) -> Order:
    repository, at, revision = text.partition("@")
    order = Order(repository, revision, name, file)
    problems = order.problems()
    if at and not revision:
        problems["revision"] = "is empty"
    for attribute, words in problems.items():
        raise UsageError(f"{ARGUMENTS[attribute]}: {getattr(order, attribute)!r} {words}")
    return order


def _there(order: Order, server: ServerOptions, display: PullDisplay) -> model_pb2.Model:
    request = model_pb2.PullModelRequest(
        repository=order.repository, revision=order.revision, model=order.name, file=order.file
    )
    model = model_pb2.Model(model=order.model)
    with connect(server) as connection:
        call = connection.models.PullModel(request, timeout=connection.timeout_s, metadata=connection.metadata)
        try:
            for response in call:
                if response.HasField("model"):
                    model = response.model
                else:
                    display.update(response)
        finally:
            call.cancel()
    return model


def _here(order: Order, display: PullDisplay) -> model_pb2.Model:
    """Download on this machine, and look at what came.

    Raises:
        UsageError: the name is taken.
        ServerError: it cannot be had, as a server would say it.
    """
    for other in cached_models(hub_cache()):
        if other.name == order.model and other.repository != order.repository:
            raise UsageError(f"--name: {order.model!r} is the name of a model of {other.repository}")
    try:
        return asyncio.run(_download(order, display))
    except GatewayError as error:
        raise told(error) from error


async def _download(order: Order, display: PullDisplay) -> model_pb2.Model:
    def show(progress: Progress) -> None:
        display.update(
            model_pb2.PullModelResponse(
                phase=progress.phase,
                file=progress.file,
                bytes_done=progress.bytes_done,
                bytes_total=progress.bytes_total,
            )
        )

    done = await Downloader(pull_command(process_environment(), hub_cache()), quiet_log()).run(order, show)
    if not has_worker():  # whoever serves it will tell what it is
        return model_pb2.Model(model=order.model, revision=done.revision[:REVISION_CHARS])
    show(Progress("describing"))
    return await _described(order, done)


async def _described(order: Order, done: Done) -> model_pb2.Model:
    """Return what a worker reads of the model, or why it would not load it."""
    entry = next(model for model in cached_models(hub_cache()) if model.name == order.model)
    describer = Describer(worker_command("describe"), DESCRIBE_LIMIT_S, quiet_log(), asyncio.Semaphore(1))
    try:
        model = await describer.describe(CatalogueModel(order.model, entry.checkpoint))
    except GatewayError as error:
        model = model_pb2.Model(revision=done.revision[:REVISION_CHARS], failure=failure_of(error))
    model.model = order.model
    return model
