"""The server that transcribes, and the model on it: one that runs already, or one of our own."""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import grpc
from pomona.v1 import model_pb2

from gateway.catalogue import is_name
from gateway.cli import output
from gateway.cli.connection import Connection, ServerOptions, connect
from gateway.cli.demo_models import WHISPER_BASE, whisper_base
from gateway.cli.failures import SetupError, UsageError
from gateway.cli.load import load_with_progress
from gateway.cli.models import every_model
from gateway.cli.own_server import own_server
from gateway.cli.progress import display
from gateway.settings import process_environment

OWN_MODEL = "speech"


@contextmanager
def speech_server(options: ServerOptions, model: str | None, *, is_chosen: bool) -> Generator[tuple[Connection, str]]:
    """Yield a connection and the name of the model on it that is to transcribe.

    A server that nobody chose is the one at the usual address, where one runs there and has the model; elsewhere one is
    started for the length of the block, with the folder that `model` names or with Whisper base.

    Args:
        options: how to reach the server.
        model: its name, or a folder of it for a server of our own; None: the only one that transcribes.
        is_chosen: whether the caller named the server.

    Raises:
        UsageError: several models transcribe, or none; or a folder is named that cannot be served here.
        SetupError: no server runs, and none of our own can.
        ServerError: a call failed.
    """
    with ExitStack() as stack:
        if model is not None and not is_chosen and Path(model).is_dir():
            yield stack.enter_context(_own(options, OWN_MODEL, Path(model)))
            return
        if model is not None and not is_name(model):
            raise UsageError(f"--model: {_why_not(model, options.server)}")
        connection = stack.enter_context(connect(options))
        if is_chosen:
            yield connection, model or _only(_transcribing(connection), options.server)
            return
        names = _transcribing_if_running(connection)
        if names and model in {None, *names}:
            yield connection, model or _only(names, options.server)
        elif model in {None, WHISPER_BASE}:
            yield stack.enter_context(_own(options, WHISPER_BASE, whisper_base()))
        elif names is None:
            raise SetupError(
                f"no server answers at {options.server}, and {model!r} is no folder to serve here: give --server "
                "ADDRESS, or the folder of a model, or no --model at all for Whisper base"
            )
        else:
            yield connection, str(model)


def _why_not(model: str, address: str) -> str:
    """Say why what cannot be the name of a model is not served from here either."""
    if not Path(model).is_dir():
        return f"{model} is no folder here, and cannot be the name of a model"
    return (
        f"{model} is a folder, and the server at {address} has models by name; a folder is served where none is named"
    )


def _transcribing(connection: Connection) -> list[str]:
    """Return the names of the models that transcribe."""
    return [each.model for each in every_model(connection) if model_pb2.Model.TASK_TRANSCRIBE in each.tasks]


def _transcribing_if_running(connection: Connection) -> list[str] | None:
    """Return the names, or None where no server answers."""
    try:
        return _transcribing(connection)
    except grpc.RpcError as error:
        if isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.UNAVAILABLE:
            return None
        raise


def _only(names: list[str], address: str) -> str:
    if not names:
        raise UsageError(f"the server at {address} has no model that transcribes")
    if len(names) > 1:
        raise UsageError(f"several models transcribe: add --model with one of {', '.join(names)}")
    return names[0]


@contextmanager
def _own(options: ServerOptions, name: str, checkpoint: Path) -> Generator[tuple[Connection, str]]:
    """Serve `checkpoint` for the length of the block."""
    served = ("--model", f"{name}={checkpoint}")
    output.notice(f"starting a server with {' '.join(served)}")
    arguments = ("--listen", "127.0.0.1:0", "--log-level", "error", *served)
    with own_server(arguments, process_environment()) as server:
        address = ServerOptions(server=server.address, timeout=options.timeout)
        with connect(replace(address, timeout=None)) as link:
            load_with_progress(link, model_pb2.LoadModelRequest(model=name), display(name))
        with connect(address) as connection:
            yield connection, name
