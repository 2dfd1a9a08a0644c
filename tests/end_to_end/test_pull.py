"""A model's way through a real server: pulled, served, deleted; and one that came beside it."""

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import grpc
import pytest
from pomona.v1 import generation_pb2, generation_pb2_grpc, model_pb2, model_pb2_grpc

from tests.support.hub import Hub
from tests.support.kill_rounds import reason_of
from tests.support.served import served
from tests.support.tiny_models import write_llama

LIMIT_S = 60.0
NAME = "org/tiny"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub().running() as running:
        running.add(NAME, write_llama(tmp_path / "tiny"))
        for name, value in running.environment(tmp_path).items():
            monkeypatch.setenv(name, value)
        yield running


def test_a_pulled_model_answers_and_goes_again(hub: Hub, tmp_path: Path) -> None:
    with served() as server, grpc.insecure_channel(server.address) as channel:
        models, generation = (
            model_pb2_grpc.ModelServiceStub(channel),
            generation_pb2_grpc.GenerationServiceStub(channel),
        )

        *steps, last = models.PullModel(model_pb2.PullModelRequest(repository=NAME), timeout=LIMIT_S)
        assert last.model.model == NAME
        assert max(step.bytes_done for step in steps) == max(step.bytes_total for step in steps) > 0

        assert generate(generation).usage.completion_tokens == 3
        delete = partial(models.DeleteModel, model_pb2.DeleteModelRequest(model=NAME), timeout=LIMIT_S)
        with pytest.raises(grpc.RpcError) as refused:
            delete()
        assert reason_of(refused.value) == "MODEL_IN_USE"
        models.UnloadModel(model_pb2.UnloadModelRequest(model=NAME), timeout=LIMIT_S)
        assert delete().freed_bytes > 0
        with pytest.raises(grpc.RpcError) as missing:
            generate(generation)
        assert reason_of(missing.value) == "MODEL_NOT_FOUND"

        cache = tmp_path / "hub" / "models--org--other" / "snapshots" / ("1" * 40)
        shutil.copytree(tmp_path / "tiny", cache)
        (cache.parents[1] / "refs").mkdir()
        (cache.parents[1] / "refs" / "main").write_text("1" * 40)
        changed = models.RefreshCatalogue(model_pb2.RefreshCatalogueRequest(), timeout=LIMIT_S)
        assert list(changed.added) == ["org/other"]
        assert generate(generation, "org/other").usage.completion_tokens == 3
        assert hub.downloads("model.safetensors")


def generate(stub: generation_pb2_grpc.GenerationServiceStub, model: str = NAME) -> generation_pb2.GenerateResponse:
    stopping = generation_pb2.StoppingParams(max_tokens=3, ignore_eos=True)
    spec = generation_pb2.GenerationSpec(prompt="ab", stopping=stopping)
    return stub.Generate(generation_pb2.GenerateRequest(model=model, spec=spec), timeout=LIMIT_S)
