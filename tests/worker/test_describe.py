"""The one-shot `describe`: what it says of a checkpoint, that it needs no MLX, and how it refuses."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from pomona.v1 import model_pb2

from models.checkpoint.errors import CheckpointRejected
from tests.support.tiny_checkpoints import llama_config, write_folder, write_llama_gguf
from worker.describe import default_sampling, default_stopping, describe, main
from worker.validation import MAX_TOP_LOGPROBS


def test_says_what_the_headers_say(tmp_path: Path) -> None:
    model = describe(write_llama_gguf(tmp_path / "m.gguf"))
    assert model.architecture == "llama"
    assert model.quantization == "affine 4-bit g32, mixed"
    assert list(model.tasks) == [model_pb2.Model.TASK_GENERATE]
    assert model.limits.max_context_tokens == 512
    assert len(model.revision) == 16


def test_a_plain_checkpoint_has_no_quantization(tmp_path: Path) -> None:
    assert describe(write_folder(tmp_path / "a")).quantization == ""


def test_claims_what_this_build_has_and_nothing_that_it_lacks(tmp_path: Path) -> None:
    capabilities = describe(write_folder(tmp_path / "a")).generation
    flags = {field.name for field in capabilities.DESCRIPTOR.fields if field.cpp_type == field.CPPTYPE_BOOL}
    claimed = dict.fromkeys(("logprobs", "prefix_cache", "json_schema", "regex", "lark_grammar", "adapters"), True)
    told = {field.name: value for field, value in capabilities.ListFields()}
    assert told.pop("max_logprobs") == MAX_TOP_LOGPROBS
    assert set(told.pop("unavailable")) == {"tool_calls", "reasoning"}
    assert told == dict.fromkeys(flags, False) | claimed


def test_what_a_template_says_is_claimed(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a")
    template = "{% for tool in tools %}<tool_call>{{ tool }}{% endfor %}{{ message.tool_calls }}<think></think>"
    (folder / "chat_template.jinja").write_text(template)
    capabilities = describe(folder).generation
    assert (capabilities.tool_calls, capabilities.reasoning) == (True, True)
    assert not capabilities.unavailable


def test_a_checkpoint_that_says_nothing_gets_a_mild_temperature() -> None:
    sampling = default_sampling({})
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == pytest.approx((0.8, 1.0, 0, 0.05))
    assert sampling.repetition_penalty == 1.0


def test_takes_the_defaults_of_generation_config() -> None:
    given = {
        "do_sample": True,
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 20,
        "min_p": None,
        "repetition_penalty": 1.5,
    }
    sampling = default_sampling(given)
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.25, 20, 0.0)
    assert sampling.repetition_penalty == 1.5


def test_do_sample_false_is_greedy() -> None:
    assert default_sampling({"do_sample": False, "temperature": 0.5}).temperature == 0.0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_k", -1),
        ("top_k", 2.5),
        ("top_k", 1 << 31),
        ("min_p", 2),
        ("repetition_penalty", 0.0),
        ("max_new_tokens", 0),
        ("max_new_tokens", 1 << 32),
    ],
)
def test_names_a_default_that_no_request_could_ask_for(key: str, value: Any) -> None:
    read = default_stopping if key == "max_new_tokens" else default_sampling
    with pytest.raises(CheckpointRejected) as caught:
        read({key: value})
    assert (caught.value.file, caught.value.key) == ("generation_config.json", key)


def test_takes_the_length_of_generation_config() -> None:
    assert default_stopping({"max_new_tokens": 99}).max_tokens == 99
    assert not default_stopping({}).HasField("max_tokens")


def test_prints_a_message_that_the_contract_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_folder(tmp_path / "a", generation_config={"temperature": 0.5})
    assert main([str(folder)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    assert json_format.Parse(printed, model_pb2.Model()) == describe(folder)


def test_prints_why_it_refuses_without_the_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_folder(tmp_path / "a", llama_config(hidden_size=None), {})
    assert main([str(folder)]) == 3
    assert json.loads(capsys.readouterr().out) == {
        "reason": "CHECKPOINT_REJECTED",
        "message": "config.json: hidden_size: is missing",
        "metadata": {"file": "config.json", "key": "hidden_size"},
    }


def test_prints_that_a_folder_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nothing")]) == 3
    failure = json.loads(capsys.readouterr().out)
    assert (failure["reason"], failure["metadata"]) == ("CHECKPOINT_REJECTED", {"file": "nothing"})


def test_wants_one_path(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage" in capsys.readouterr().err


def test_imports_no_mlx(tmp_path: Path) -> None:
    path = write_llama_gguf(tmp_path / "m.gguf")
    script = "import sys; from worker.describe import main; main(sys.argv[1:]); print('mlx' in sys.modules)"
    run = subprocess.run(
        [sys.executable, "-P", "-c", script, str(path)], capture_output=True, text=True, timeout=30, check=True
    )
    assert run.stdout.splitlines()[-1] == "False"


def test_the_settings_decide_what_is_claimed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_folder(tmp_path / "a")
    (folder / "chat_template.jinja").write_text("{% for tool in tools %}{{ tool }}{% endfor %}")
    settings = {"reasoning_marks": ["<a>", "</a>"], "tool_dialect": "glm"}
    for told, claimed in [
        ({}, (False, False)),
        (settings, (True, True)),
        ({"reasoning_marks": "none"}, (False, False)),
    ]:
        assert main([str(folder), json.dumps(told)]) == 0
        said = json_format.Parse(capsys.readouterr().out, model_pb2.Model()).generation
        assert (said.tool_calls, said.reasoning) == claimed


@pytest.mark.parametrize(
    ("settings", "option"),
    [({"tool_dialect": "klingon"}, "tool_dialect"), ({"reasoning_marks": ["<a>", "<a>"]}, "reasoning_marks")],
)
def test_settings_of_no_use_are_why_it_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: dict[str, Any], option: str
) -> None:
    assert main([str(write_folder(tmp_path / "a")), json.dumps(settings)]) == 3
    said = json.loads(capsys.readouterr().out)
    assert (said["reason"], said["metadata"]) == ("MODEL_LOAD_FAILED", {"option": option})


def test_what_mlx_lm_knows_is_described_where_it_is_allowed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_folder(tmp_path / "a", config=llama_config(model_type="stablelm"))
    assert main([str(folder)]) == 3
    assert json.loads(capsys.readouterr().out)["metadata"] == {"file": "config.json", "key": "model_type"}
    assert main([str(folder), '{"allow_mlx_lm": true}']) == 0
    assert json_format.Parse(capsys.readouterr().out, model_pb2.Model()).architecture == "stablelm"


@pytest.mark.parametrize("settings", ["{", "[]", '{"model": "m"}', '{"tool_dialect": 3}', '{"reasoning_marks": 3}'])
def test_what_are_no_settings_of_a_model_is_wrong_use(tmp_path: Path, settings: str) -> None:
    assert main([str(write_folder(tmp_path / "a")), settings]) == 2
