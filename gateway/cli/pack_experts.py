"""`pack-experts`: the routed experts of a model in one file beside it, from which they can be mapped or read fast."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli import output
from gateway.cli.failures import CliError, SetupError, StatusFacts, UsageError
from gateway.cli.fit import is_path
from gateway.cli.gateway_failure import told
from gateway.cli.hub_cache import hub_cache
from gateway.cli.own_worker import has_worker, quiet_log, worker_command
from gateway.cli.pack_progress import PackDisplay
from gateway.cli.remove import NotCachedError
from gateway.cli.verb import JsonFlag, verb
from gateway.errors import GatewayError, load_error
from gateway.hub.cache import cached_models
from gateway.packing import Action, Packer, PackRefused

CODES = {"DISK_FULL": "FAILED_PRECONDITION", "PACK_BUSY": "ABORTED", "PACK_FAILED": "FAILED_PRECONDITION"}


class PackError(CliError):
    """Raised when a pack cannot be written; what was there before is still there."""

    def __init__(self, refused: PackRefused) -> None:
        self.code = CODES[refused.reason]
        self.reason = refused.reason
        super().__init__(StatusFacts(self.code, str(refused), self.reason).line())


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

    A mixture-of-experts model larger than memory is served from its pack: its
    experts are mapped, and read as they are needed. The pack is experts.pack
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
    if not has_worker():
        raise SetupError("this install has no worker to read it: pip install 'pomona[worker]'")
    action: Action = "rebuild" if force else "check" if check else "remove" if remove else "build"
    folder = _folder(model)
    display = PackDisplay(model, as_json=as_json)
    try:
        asyncio.run(Packer(worker_command("pack"), quiet_log()).run(model, folder, action, display.take))
    except PackRefused as refused:
        raise _told(model, refused) from refused
    except GatewayError as error:
        raise told(error) from error
    except KeyboardInterrupt:
        output.notice("nothing unfinished is left")
        raise
    finally:
        display.close()
    if as_json:
        output.emit({"pack": display.pack})
    else:
        output.line(_verdict(model, action, display.pack))


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
            output.notice(f"{text} is here too: pomona pack-experts ./{text}")
        raise NotCachedError(text, list(cached))
    return cached[text]


def _told(model: str, refused: PackRefused) -> CliError:
    if refused.reason in CODES:
        return PackError(refused)
    return told(load_error(model, refused.reason, f"{refused}.", refused.metadata))


def _verdict(model: str, action: Action, pack: Mapping[str, Any]) -> str:
    if action == "remove":
        freed = int(pack["freedBytes"])
        return f"the pack of {model} is gone, {output.bytes_text(freed)} freed" if freed else f"{model} has no pack"
    size = output.bytes_text(int(pack["bytesTotal"]))
    if action == "check":
        return f"every byte of the pack of {model} is as it was written, {size}"
    return f"{model} {'is packed' if pack['isNew'] else 'has a pack that fits'}: {size} of experts in {pack['path']}"
