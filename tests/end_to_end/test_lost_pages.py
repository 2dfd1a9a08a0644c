"""A model whose experts are mapped, and whose pack is cut while it serves: one end, in words, no worker after it."""

from collections.abc import Callable, Generator
from pathlib import Path

import grpc
import pytest
from pomona.v1 import generation_pb2, generation_pb2_grpc, model_pb2, model_pb2_grpc

from models.checkpoint.folder import read_folder_tensors
from models.experts.pack import PACK_FILE, PAGE_BYTES
from models.experts.pack_builder import build_pack, plan_pack
from tests.support.kill_rounds import LIMIT_S, MODEL, QUICK, GatewayProcess, end_of, gateway_process, reason_of
from tests.support.tiny_families import Tiny, write_family
from tests.support.waiting import wait_until


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Return a tiny model with its pack."""
    folder = write_family(tmp_path / "moe", Tiny("qwen3_moe", {}, {"group_size": 64, "bits": 4}))
    build(folder)
    return folder


@pytest.fixture
def gateway(checkpoint: Path) -> Generator[GatewayProcess]:
    with gateway_process(checkpoint, is_fake=False, **QUICK) as started:
        yield started


def build(folder: Path) -> None:
    build_pack(plan_pack(folder, read_folder_tensors(folder)[0]), lambda *_: None)


def load(channel: grpc.Channel) -> model_pb2.Model:
    options = model_pb2.LoadOptions(experts_mode=model_pb2.EXPERTS_MODE_MAPPED)
    request = model_pb2.LoadModelRequest(model=MODEL, options=options)
    return model_pb2_grpc.ModelServiceStub(channel).LoadModel(request, timeout=LIMIT_S).model


def generate(channel: grpc.Channel) -> None:
    spec = generation_pb2.GenerationSpec(prompt="once", stopping=generation_pb2.StoppingParams(max_tokens=4))
    stub = generation_pb2_grpc.GenerationServiceStub(channel)
    stub.Generate(generation_pb2.GenerateRequest(model=MODEL, spec=spec), timeout=LIMIT_S)


def refusal(call: Callable[[grpc.Channel], object], channel: grpc.Channel) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        call(channel)
    return reason_of(caught.value)


def test_a_pack_that_is_cut_ends_its_model_with_the_reason(gateway: GatewayProcess, checkpoint: Path) -> None:
    with gateway.channel() as channel:
        load(channel)
        call = gateway.stream(channel)
        with (checkpoint / PACK_FILE).open("r+b") as file:
            file.truncate(PAGE_BYTES)
        assert reason_of(end_of(call)) == "WORKER_DIED"
        wait_until(lambda: gateway.model(channel).state == model_pb2.MODEL_STATE_FAILED)
        model = gateway.model(channel)
        assert "cannot be read where it is mapped" in model.failure.message  # by the worker's own last words
        assert (model.failure.reason, dict(model.failure.metadata)["file"]) == ("CHECKPOINT_CORRUPT", PACK_FILE)
        assert refusal(generate, channel) == "CHECKPOINT_CORRUPT"
        assert not gateway.workers()
        assert refusal(load, channel) == "CHECKPOINT_CORRUPT"
        build(checkpoint)
        assert load(channel).state == model_pb2.MODEL_STATE_ACTIVE
        generate(channel)
