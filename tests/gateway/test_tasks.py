"""What a model cannot do is refused before the model is loaded for it."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from pomona.v1 import model_pb2

from gateway.catalogue import Catalogue, CatalogueModel
from gateway.errors import ModelLoadFailed
from gateway.front import RELAYED
from gateway.model_status import ModelState, ModelStatus
from gateway.relay import Relay, methods_of
from gateway.tasks import DESCRIBE_LIMIT_S, check_task, task_of
from tests.gateway.statuses import Seen, failure_of
from tests.support.scripted_worker import MODEL, relay_under_test, request

Model = model_pb2.Model
LIMIT_S = 10.0
METHODS = {
    "/pomona.v1.GenerationService/StreamGenerate": Model.TASK_GENERATE,
    "/pomona.v1.EmbeddingService/Embed": Model.TASK_EMBED,
    "/pomona.v1.EmbeddingService/Rerank": Model.TASK_RERANK,
    "/pomona.v1.TranscriptionService/StreamTranscribe": Model.TASK_TRANSCRIBE,
}
TEXT = "/pomona.v1.GenerationService/Generate"
SPEECH = "/pomona.v1.TranscriptionService/Transcribe"


def test_every_relayed_method_has_a_task() -> None:
    assert None not in {task_of(method) for method in methods_of(*RELAYED)}
    assert {method: task_of(method) for method in METHODS} == METHODS
    assert task_of("/test.Kinds/UnaryUnary") is None


def catalogue(*tasks: Any, is_read: bool = True) -> tuple[Catalogue, CatalogueModel]:
    async def describe(model: CatalogueModel) -> model_pb2.Model:
        if not is_read:
            raise ModelLoadFailed(model.name, "its headers could not be read.")
        return Model(tasks=tasks)

    model = CatalogueModel(MODEL, Path(__file__))
    return Catalogue([model], describe), model


async def answer(
    folder: Path, method: str, known: Catalogue, state: ModelState = ModelState.UNLOADED
) -> tuple[Seen, int]:
    """Return what a call of a method ends with, and how often a worker was asked for."""
    async with relay_under_test(folder, {}) as relay:
        relay.pool.statuses[MODEL] = ModelStatus(MODEL, state)
        server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        handlers = Relay(methods_of(*RELAYED), replace(relay.parts, catalogue=known))
        server.add_generic_rpc_handlers((handlers,))
        server.add_insecure_port(f"unix:{folder / 'second.sock'}")
        await server.start()
        async with grpc.aio.insecure_channel(f"unix:{folder / 'second.sock'}") as channel:
            failure = await failure_of(channel.unary_unary(method)(request(), timeout=LIMIT_S))
        await server.stop(None)
        assert not len(relay.parts.requests)
        return failure, relay.pool.acquired


async def test_a_task_that_an_unloaded_model_cannot_do_is_refused_without_a_load(tmp_path: Path) -> None:
    failure, acquired = await answer(tmp_path, SPEECH, catalogue(Model.TASK_GENERATE, Model.TASK_EMBED)[0])
    assert (failure.code, failure.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "TASK_NOT_SUPPORTED")
    assert failure.metadata == {"model": MODEL, "tasks": "generate, embed"}
    assert "PreconditionFailure" in failure.details
    assert acquired == 0


@pytest.mark.parametrize(
    ("method", "known", "state"),
    [
        (TEXT, catalogue(Model.TASK_GENERATE), ModelState.UNLOADED),
        (SPEECH, catalogue(), ModelState.UNLOADED),
        (SPEECH, catalogue(is_read=False), ModelState.UNLOADED),
        (SPEECH, catalogue(Model.TASK_GENERATE), ModelState.ACTIVE),
    ],
    ids=["a task that it can do", "headers that tell no task", "headers that cannot be read", "a model that is loaded"],
)
async def test_all_else_goes_to_the_worker(
    tmp_path: Path, method: str, known: tuple[Catalogue, CatalogueModel], state: ModelState
) -> None:
    _, acquired = await answer(tmp_path, method, known[0], state)
    assert acquired > 0


async def test_headers_that_take_long_hold_up_no_load_beyond_half_of_the_time() -> None:
    async def describe(model: CatalogueModel) -> model_pb2.Model:
        await asyncio.Event().wait()
        return Model()

    model = CatalogueModel(MODEL, Path(__file__))
    async with asyncio.timeout(DESCRIBE_LIMIT_S):
        await check_task(SPEECH, model, Catalogue([model], describe), 0.4)
