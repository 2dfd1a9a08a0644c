"""Which task a method is about, and the refusal of one that a model cannot do, before it is loaded for that."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

from pomona.v1 import model_pb2

from gateway.catalogue import Catalogue, CatalogueModel
from gateway.errors import TaskNotSupported

DESCRIBE_LIMIT_S = 2.0  # after that a load tells the rest

# By how the full name of a method begins.
TASKS: Mapping[str, model_pb2.Model.Task.ValueType] = {
    "/pomona.v1.GenerationService/": model_pb2.Model.TASK_GENERATE,
    "/pomona.v1.AdapterService/": model_pb2.Model.TASK_GENERATE,
    "/pomona.v1.EmbeddingService/Embed": model_pb2.Model.TASK_EMBED,
    "/pomona.v1.EmbeddingService/Rerank": model_pb2.Model.TASK_RERANK,
    "/pomona.v1.TranscriptionService/": model_pb2.Model.TASK_TRANSCRIBE,
}


def task_of(method: str) -> model_pb2.Model.Task.ValueType | None:
    """Return the task that a method, by its full name, needs of a model; None where it needs none."""
    return next((task for start, task in TASKS.items() if method.startswith(start)), None)


async def check_task(method: str, model: CatalogueModel, catalogue: Catalogue, remaining_s: float) -> None:
    """Refuse what the headers of a model's checkpoint say that it cannot do; a worker that has it refuses by itself.

    Args:
        method: full name.
        model: that is not loaded.
        catalogue: knows or reads its description; where that takes long or fails, nothing is refused.
        remaining_s: until the caller's deadline, half of which is left to the load.

    Raises:
        TaskNotSupported: it can do other tasks.
    """
    task = task_of(method)
    if task is None:
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(min(DESCRIBE_LIMIT_S, remaining_s / 2)):
            tasks = (await catalogue.describe(model)).facts.tasks
            if tasks and task not in tasks:
                raise TaskNotSupported(model.name, ", ".join(map(_word, tasks)))


def _word(task: model_pb2.Model.Task.ValueType) -> str:
    return model_pb2.Model.Task.Name(task).removeprefix("TASK_").lower()
