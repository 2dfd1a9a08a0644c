"""A server over a folder of models, with defaults of requests, a model that is loaded early, and SIGHUP."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from pomona.v1 import generation_pb2 as g
from pomona.v1 import generation_pb2_grpc, model_pb2, model_pb2_grpc

from tests.support.served import Served, served
from tests.support.tiny_models import write_llama
from tests.support.waiting import wait_until

LIMIT_S = 30.0
ACTIVE = model_pb2.MODEL_STATE_ACTIVE


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name in ("tiny", "org/tiny"):
        (folder / name).parent.mkdir(exist_ok=True)
        write_llama(folder / name)
    return folder


def settings_text(folder: Path, name: str = "early") -> str:
    return f"""
        models_folder = "{folder}"
        hub_models = false
        [[models]]
        name = "{name}"
        checkpoint = "{folder / "tiny"}"
        preload = true
        defaults = {{ seed = 7, temperature = 1.5, max_tokens = 5 }}
        """


@pytest.fixture(scope="module")
def settings(folder: Path) -> Path:
    path = folder / "pomona.toml"
    path.write_text(settings_text(folder))
    return path


@pytest.fixture(scope="module")
def server(settings: Path) -> Iterator[Served]:
    with served("--settings", str(settings)) as running:
        yield running


@pytest.fixture(scope="module")
def models(server: Served) -> Iterator[Any]:
    with grpc.insecure_channel(server.address) as channel:
        yield model_pb2_grpc.ModelServiceStub(channel)


def get(models: Any, name: str) -> model_pb2.Model:
    return models.GetModel(model_pb2.GetModelRequest(model=name), timeout=LIMIT_S).model


def names(models: Any) -> list[str]:
    return [one.model for one in models.ListModels(model_pb2.ListModelsRequest(), timeout=LIMIT_S).models]


def test_the_models_of_the_folder_are_listed_beside_those_of_the_settings(models: Any) -> None:
    assert names(models) == ["early", "org/tiny", "tiny"]


def test_a_model_that_is_to_be_there_early_is_loaded_without_a_request(models: Any) -> None:
    wait_until(lambda: get(models, "early").state == ACTIVE, LIMIT_S)
    assert get(models, "tiny").state == model_pb2.MODEL_STATE_UNLOADED


def test_defaults_of_the_settings_are_shown_and_hold(server: Served, models: Any) -> None:
    wait_until(lambda: get(models, "early").state == ACTIVE, LIMIT_S)
    shown = get(models, "early")
    assert (shown.default_sampling.seed, shown.default_sampling.temperature) == (7, 1.5)
    assert shown.default_stopping.max_tokens == 5
    assert get(models, "tiny").default_sampling.temperature != 1.5
    with grpc.insecure_channel(server.address) as channel:
        generation: Any = generation_pb2_grpc.GenerationServiceStub(channel)

        def tokens(**sampling: Any) -> list[int]:
            spec = g.GenerationSpec(prompt="hello", output=g.OutputOptions(token_ids=True))
            spec.sampling.MergeFrom(g.SamplingParams(**sampling))
            spec.stopping.ignore_eos = True
            answer = generation.Generate(g.GenerateRequest(model="early", spec=spec), timeout=LIMIT_S)
            return [token.id for token in answer.sequences[0].tokens]

        first = tokens()
        assert (len(first), tokens()) == (5, first)
        assert tokens(seed=7, temperature=1.5) == first
        assert tokens(seed=8) != first


def test_sighup_brings_what_is_new_and_the_server_goes_on(
    server: Served, models: Any, settings: Path, folder: Path
) -> None:
    settings.write_text(settings_text(folder).replace("early", "late"))
    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "late" in names(models), LIMIT_S)
    wait_until(lambda: get(models, "late").state == ACTIVE, LIMIT_S)
    assert server.process.poll() is None
    settings.write_text("[limits]\nmax_requests = 0")
    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: any("settings not read again" in line for line in server.log), LIMIT_S)
    assert "late" in names(models)
