"""Defaults of requests that the operator sets: which are taken, and whom they go before."""

import json
from pathlib import Path
from typing import Any

import pytest
from pomona.v1 import generation_pb2 as pb
from pomona.v1 import model_pb2

from tests.support.tiny_checkpoints import write_folder
from worker import describe as described
from worker.defaults import NEVER_ZERO, RANGES, are_defaults, note_defaults
from worker.describe import describe
from worker.errors import ModelLoadFailed
from worker.sequence import SamplingSettings
from worker.settings import SettingsError, read_some
from worker.validation import SAMPLING_RANGES, ModelFacts, read_generation


@pytest.mark.parametrize("values", [{}, {"temperature": 0}, {"top_p": 1, "seed": (1 << 64) - 1, "max_tokens": 1}])
def test_takes_what_requests_could_ask_for(values: dict[str, float]) -> None:
    assert are_defaults(values)


@pytest.mark.parametrize(
    "values",
    [
        [],
        {"temperature": -1},
        {"temperature": float("nan")},
        {"temperature": True},
        {"temperature": "1"},
        {"top_p": 0},
        {"repetition_penalty": 0},
        {"top_k": 1.5},
        {"seed": -1},
        {"max_tokens": 0},
        {"stop_strings": 1},
    ],
)
def test_refuses_every_other_value(values: Any) -> None:
    assert not are_defaults(values)
    with pytest.raises(SettingsError):
        read_some(json.dumps({"defaults": values}), ["defaults"])


def test_the_ranges_are_those_of_requests() -> None:
    assert {name: RANGES[name] for name in SAMPLING_RANGES} == SAMPLING_RANGES
    fields = set(pb.SamplingParams.DESCRIPTOR.fields_by_name) - {"logit_bias", "num_sequences"}
    assert set(RANGES) == fields | {"max_tokens"}
    assert set(RANGES) >= NEVER_ZERO


def test_the_settings_go_before_the_checkpoint() -> None:
    message = model_pb2.Model(
        default_sampling=pb.SamplingParams(temperature=0.5, top_k=20), default_stopping=pb.StoppingParams(max_tokens=9)
    )
    note_defaults(message, {"temperature": 0, "seed": 7, "max_tokens": 5})
    assert message.default_sampling == pb.SamplingParams(temperature=0, top_k=20, seed=7)
    assert message.default_stopping.max_tokens == 5


def test_a_description_tells_them(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", generation_config={"temperature": 0.5, "top_k": 20})
    model = describe(folder, defaults={"top_k": 4, "max_tokens": 33})
    assert (model.default_sampling.temperature, model.default_sampling.top_k) == (0.5, 4)
    assert model.default_stopping.max_tokens == 33
    assert "defaults" in described.SETTINGS


def test_a_model_that_draws_nothing_has_none(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a")
    with pytest.raises(ModelLoadFailed, match="defaults"):
        describe(folder, task="embed", defaults={"top_k": 4})


def test_a_request_goes_before_them() -> None:
    facts = ModelFacts(100, 50, SamplingSettings(penalty_window=3), seed=7)
    message = pb.GenerateRequest(model="m", request_id="r", spec=pb.GenerationSpec(prompt="p"))
    assert read_generation(message.SerializeToString(), pb.GenerateRequest, facts).seed == 7
    message.spec.sampling.seed = 8
    made = read_generation(message.SerializeToString(), pb.GenerateRequest, facts)
    assert (made.seed, made.sampling.penalty_window) == (8, 3)
