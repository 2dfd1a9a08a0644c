"""`fuse`: a model and an adapter of it as one folder, to be served or passed on without the adapter."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli import output
from gateway.cli.failures import CliError, ServerError, SetupError, StatusFacts
from gateway.cli.fit import is_path
from gateway.cli.fuse_progress import FuseDisplay
from gateway.cli.gateway_failure import told
from gateway.cli.hub_cache import hub_cache
from gateway.cli.own_worker import has_worker, quiet_log, worker_command
from gateway.cli.remove import NotCachedError
from gateway.cli.verb import JsonFlag, verb
from gateway.errors import GatewayError, load_error
from gateway.fusing import FuseOrder, Fuser, FuseRefused
from gateway.hub.cache import cached_models

CODES = {
    "OUTPUT_EXISTS": "ALREADY_EXISTS",
    "DISK_FULL": "RESOURCE_EXHAUSTED",
    "FUSE_BUSY": "ABORTED",
    "FUSE_FAILED": "FAILED_PRECONDITION",
    "FUSE_DIFFERS": "FAILED_PRECONDITION",
    "ADAPTER_NOT_FOUND": "NOT_FOUND",
    "ADAPTER_INCOMPATIBLE": "FAILED_PRECONDITION",
}


@verb
def fuse(
    *,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model of the hub's cache, or a folder.")],
    adapter: Annotated[Path, typer.Argument(metavar="ADAPTER", help="The adapter's folder.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to make; nothing may be there.")],
    pack: Annotated[
        bool, typer.Option("--pack", help="Pack the layers that the adapter changes again, where MLX packed them.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Write a model with a LoRA adapter in its weights.

    MODEL is a name in the hub's cache of this machine. What begins with "/",
    "." or "~" is a folder instead: pomona fuse ./my-model ./my-adapter ./out

    OUT is a model like any other, and needs no adapter. How much of the disk
    it takes is said first. What was written is loaded and compared with the
    model that has the adapter mounted; where it answers otherwise, nothing is
    left of it. Ctrl-C leaves nothing either.

    Packed (quantized) layers that the adapter changes become floats, and OUT
    larger than MODEL: packed again they lose some of the adapter, of 4 bits
    most of it. --pack packs them all the same, and is refused where more than
    a quarter of it would be lost. Layers packed as small floats (MXFP4, MXFP8,
    NVFP4) stay unpacked in any case.

    With --json: lines {"plan": {"path", "layers", "unpackedLayers",
    "packedLayers", "bytesTotal", "neededBytes", "freeBytes"}}, {"progress":
    {"phase", "done", "total"}}; the last is {"fused": {"path", "layers",
    "unpackedLayers", "packedLayers", "bytesTotal", "adapterRevision",
    "skippedTensors", "effect", "difference", "comparedTokens",
    "agreeingTokens"}}, or {"error": ...}.
    """
    if not has_worker():
        raise SetupError("this install has no worker to do it: pip install 'pomona[worker]'")
    order = FuseOrder(model, _folder(model), adapter.expanduser().absolute(), out.expanduser().absolute(), pack)
    display = FuseDisplay(model, as_json=as_json)
    try:
        asyncio.run(Fuser(worker_command("fuse"), quiet_log()).run(order, display.take))
    except FuseRefused as refused:
        raise _told(model, refused) from refused
    except GatewayError as error:
        raise told(error) from error
    except KeyboardInterrupt:
        output.notice("nothing unfinished is left")
        raise
    finally:
        display.close()
    if as_json:
        output.emit({"fused": display.fused})
    else:
        output.line(_verdict(model, display.fused))


def _folder(text: str) -> Path:
    """Return the folder of a model of this machine.

    Raises:
        NotCachedError: none is in the hub's cache under this name.
    """
    if is_path(text):
        return Path(text).expanduser().absolute()
    cached = {one.name: one.checkpoint for one in cached_models(hub_cache())}
    if text not in cached:
        if Path(text).exists():
            output.notice(f"{text} is here too: pomona fuse ./{text} ADAPTER OUT")
        raise NotCachedError(text, list(cached))
    return cached[text]


def _told(model: str, refused: FuseRefused) -> CliError:
    if refused.reason in CODES:
        return ServerError(StatusFacts(CODES[refused.reason], str(refused), refused.reason, dict(refused.metadata)))
    return told(load_error(model, refused.reason, f"{refused}.", refused.metadata))


def _verdict(model: str, fused: Mapping[str, Any]) -> str:
    size, count = output.bytes_text(int(fused["bytesTotal"])), output.counted(int(fused["layers"]), "layer")
    effect, difference = float(fused["effect"]), float(fused["difference"])
    off = f"off by {difference / effect:.2%} of what the adapter changes" if effect else "which changes nothing"
    return f"{model} and its adapter are one in {fused['path']}: {count} changed, {size}, {off}"
