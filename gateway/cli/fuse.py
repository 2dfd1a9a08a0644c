"""`fuse`: a model and an adapter of it as one folder, to be served or passed on without the adapter."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli import local_work, output
from gateway.cli.fuse_progress import FuseDisplay
from gateway.cli.local_model import local_folder
from gateway.cli.verb import JsonFlag, verb
from gateway.watched_one_shot import FUSE


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
    local_work.check_worker()
    folder = local_folder(model, f"pomona fuse ./{model} ADAPTER OUT")
    settings = {
        "adapter": str(adapter.expanduser().absolute()),
        "output": str(out.expanduser().absolute()),
        "packs_again": pack,
    }
    fused = local_work.do(FUSE, folder, settings, FuseDisplay(model, as_json=as_json))
    if as_json:
        output.emit({"fused": fused})
    else:
        output.line(_verdict(model, fused))


def _verdict(model: str, fused: Mapping[str, Any]) -> str:
    size, count = output.bytes_text(int(fused["bytesTotal"])), output.counted(int(fused["layers"]), "layer")
    effect, difference = float(fused["effect"]), float(fused["difference"])
    off = f"off by {difference / effect:.2%} of what the adapter changes" if effect else "which changes nothing"
    return f"{model} and its adapter are one in {fused['path']}: {count} changed, {size}, {off}"
