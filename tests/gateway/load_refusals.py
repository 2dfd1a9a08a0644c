"""One true cause for each reason of a model that cannot be had: a whole gateway, whose workers follow a script."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pomona.v1 import generation_pb2

from tests.gateway.statuses import Seen, failure_of
from tests.gateway.test_server import LIMIT_S, running, settings_for
from tests.support.scripted import write_script

Cause = Callable[[Path], Awaitable[Seen]]
SHORT_S = 0.8
FACTS: Mapping[str, Mapping[str, str]] = {
    "MODEL_LOAD_FAILED": {"option": "experts"},
    "CHECKPOINT_REJECTED": {"file": "config.json", "key": "hidden_size"},
    "CHECKPOINT_CORRUPT": {"file": "model.safetensors"},
    "MODEL_EXCEEDS_MEMORY": {"needed_bytes": "2", "budget_bytes": "1"},
}


async def refused(
    folder: Path, script: Mapping[str, Any], timeout_s: float = LIMIT_S, supervision: Mapping[str, Any] | None = None
) -> Seen:
    """Ask for a model whose worker follows `script`, and return why it is not had."""
    write_script(folder, **script)
    async with running(settings_for(folder, supervision={"back_off_first_s": 0.05, **(supervision or {})})) as server:
        asked = generation_pb2.GenerateRequest(model="model-a")
        return await failure_of(server.generation.Generate(asked, timeout=timeout_s))


async def loading(folder: Path) -> Seen:
    """Have less time than the load takes."""
    return await refused(folder, {"reports": 1000, "pause_s": 0.05}, timeout_s=SHORT_S)


async def backing_off(folder: Path) -> Seen:
    """Come within the pause after a crash that is longer than the caller's time."""
    return await refused(folder, {"load": "crash"}, supervision={"back_off_first_s": 30.0, "back_off_limit_s": 30.0})


async def failed(folder: Path) -> Seen:
    """Ask for a model whose worker crashes until its budget is spent."""
    return await refused(folder, {"load": "crash"}, supervision={"crash_budget": 1})


async def load_failed(folder: Path, reason: str) -> Seen:
    """Have a worker say why it cannot load."""
    said = {"reason": reason, "message": "its worker says why.", "metadata": FACTS[reason]}
    return await refused(folder, {"load": "fail", "failure": said})


CAUSES: Mapping[str, Cause] = {
    "MODEL_LOADING": loading,
    "MODEL_BACKING_OFF": backing_off,
    "MODEL_FAILED": failed,
    **{reason: partial(load_failed, reason=reason) for reason in FACTS},
}
