"""`pack-experts`: the routed experts of a model in one file beside it, from which they can be mapped or read fast."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import typer

from gateway.cli import local_work, output
from gateway.cli.failures import UsageError
from gateway.cli.local_model import local_folder
from gateway.cli.pack_progress import PackDisplay
from gateway.cli.verb import JsonFlag, verb
from gateway.watched_one_shot import PACK

Action = Literal["build", "rebuild", "check", "remove"]


@verb
def pack_experts(
    *,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model of the hub's cache, or a folder.")],
    force: Annotated[
        bool, typer.Option("--force", help="Write the pack anew, even where there is one that fits.")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Read the pack and compare every byte.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the pack.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Write the routed experts of a model into one file beside it.

    MODEL is a name in the hub's cache of this machine. What begins with "/",
    "." or "~" is a folder instead: pomona pack-experts ./my-model

    A mixture-of-experts model larger than memory is served from its pack:
    slabs are filled from it, or its pages are mapped. The pack is experts.pack
    in the model's folder, about as large as its experts, and gone when the
    model is removed. How much of the disk that takes is said first, and where
    that is not free nothing is written.

    A pack that is there and was made of these very weights is kept. Ctrl-C
    leaves nothing unfinished. A server that has the old pack mapped goes on
    with it until it loads the model again.

    With --json: lines {"plan": {"path", "tensors", "bytesTotal",
    "neededBytes", "freeBytes"}}, {"stale": {"why"}} where a pack is there that
    does not do, {"progress": {"phase", "bytesDone", "bytesTotal",
    "bytesPerSecond"}}; the last is {"pack": {"path", "tensors", "bytesTotal",
    "fileBytes", "isNew", "why"}}, with --remove {"pack": {"freedBytes"}}, or
    {"error": ...}.
    """
    if force + check + remove > 1:
        raise UsageError("--force, --check and --remove exclude each other")
    local_work.check_worker()
    action: Action = "rebuild" if force else "check" if check else "remove" if remove else "build"
    folder = local_folder(model, f"pomona pack-experts ./{model}")
    pack = local_work.do(PACK, folder, {"action": action}, PackDisplay(model, as_json=as_json))
    if as_json:
        output.emit({"pack": pack})
    else:
        output.line(_verdict(model, action, pack))


def _verdict(model: str, action: Action, pack: Mapping[str, Any]) -> str:
    if action == "remove":
        freed = int(pack["freedBytes"])
        return f"the pack of {model} is gone, {output.bytes_text(freed)} freed" if freed else f"{model} has no pack"
    size = output.bytes_text(int(pack["bytesTotal"]))
    if action == "check":
        return f"every byte of the pack of {model} is as it was written, {size}"
    return f"{model} {'is packed' if pack['isNew'] else 'has a pack that fits'}: {size} of experts in {pack['path']}"
