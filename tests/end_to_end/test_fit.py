"""What a real server foretells of models, and what their workers then say."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from pomona.v1 import model_pb2, model_pb2_grpc

from tests.support.served import Served, served
from tests.support.tiny_families import Tiny, write_family
from tests.support.tiny_models import write_llama
from tests.support.tiny_whisper import write_mlx

LIMIT_S = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("models")
    models = {
        "llama": write_llama(folder / "llama", quantization={"group_size": 32, "bits": 4}),
        "gemma": write_family(folder / "gemma", Tiny("gemma3_text", {"head_dim": 64})),
        "whisper": write_mlx(folder / "whisper"),
        "broken": write_llama(folder / "broken", config={"rms_norm_eps": None}),
    }
    with served(*(word for name, path in models.items() for word in ("--model", f"{name}={path}"))) as running:
        yield running


@pytest.fixture
def models(server: Served) -> Iterator[model_pb2_grpc.ModelServiceStub]:
    with grpc.insecure_channel(server.address) as channel:
        yield model_pb2_grpc.ModelServiceStub(channel)


def estimate(models: model_pb2_grpc.ModelServiceStub, model: str, **options: object) -> model_pb2.EstimateModelResponse:
    request = model_pb2.EstimateModelRequest(model=model, options=model_pb2.LoadOptions(**options))  # pyright: ignore[reportArgumentType]
    return models.EstimateModel(request, timeout=LIMIT_S)


@pytest.mark.parametrize(
    ("model", "options"),
    [("llama", {"max_batch_rows": 3}), ("gemma", {"context_tokens": 200, "kv_scheme": "8"})],
)
def test_a_model_that_is_loaded_has_the_weights_and_options_that_were_foretold(
    models: model_pb2_grpc.ModelServiceStub, model: str, options: dict[str, object]
) -> None:
    foretold = estimate(models, model, **options)
    assert models.GetModel(model_pb2.GetModelRequest(model=model), timeout=LIMIT_S).model.state == 1
    request = model_pb2.LoadModelRequest(model=model, options=model_pb2.LoadOptions(**options))  # pyright: ignore[reportArgumentType]
    loaded = models.LoadModel(request, timeout=LIMIT_S).model
    assert foretold.estimate.weights_bytes == loaded.memory.weights_bytes
    assert (foretold.device, foretold.compute_dtype) == (loaded.runtime.device, loaded.runtime.compute_dtype)
    assert foretold.options == loaded.runtime.options
    assert foretold.estimate.budget_bytes > foretold.estimate.total_bytes > foretold.estimate.kv_row_bytes > 0
    assert (foretold.fits_now, foretold.largest_context_tokens) == (True, 4096)
    again = estimate(models, model)
    assert again.options == loaded.runtime.options
    models.UnloadModel(model_pb2.UnloadModelRequest(model=model), timeout=LIMIT_S)


def test_a_model_for_speech_is_estimated_too(models: model_pb2_grpc.ModelServiceStub) -> None:
    foretold = estimate(models, "whisper", max_batch_rows=2)
    assert foretold.estimate.kv_bytes == 2 * foretold.estimate.kv_row_bytes > 0
    assert (foretold.options.max_batch_rows, foretold.largest_context_tokens, foretold.fits_now) == (2, 0, True)
    with pytest.raises(grpc.RpcError) as caught:
        estimate(models, "whisper", kv_scheme="8")
    assert isinstance(caught.value, grpc.Call)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_checkpoint_that_cannot_be_read_is_told_without_its_path(
    models: model_pb2_grpc.ModelServiceStub, tmp_path: Path
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        estimate(models, "broken")
    assert isinstance(caught.value, grpc.Call)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    details = caught.value.details() or ""
    assert "config.json: rms_norm_eps: is missing" in details
    assert str(tmp_path.parent) not in details


def test_the_command_line_asks_the_server(server: Served) -> None:
    command = [sys.executable, "-P", "-m", "gateway", "fit", "llama", "--rows", "2", "--server", server.address]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["options"]["maxBatchRows"] == 2
