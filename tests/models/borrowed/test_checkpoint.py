"""Checkpoints of architectures that are not written here: what is read of them, and what is refused all the same."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from models.borrowed.checkpoint import open_any
from models.checkpoint.checkpoint import TextCheckpoint
from models.checkpoint.errors import CheckpointCorrupt, CheckpointError
from models.checkpoint.quantization import LayerQuantization
from tests.models.borrowed.tiny import write_borrowed
from tests.support.tiny_models import END_TOKEN_ID, VOCAB_SIZE, write_llama


def rewrite(folder: Path, **changes: Any) -> Path:
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return folder


def refusal(folder: Path, *, allow_mlx_lm: bool = True) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        open_any(folder, allow_mlx_lm=allow_mlx_lm)
    assert str(folder.parent) not in str(caught.value)
    return caught.value


def test_says_what_any_checkpoint_says(tmp_path: Path) -> None:
    found = open_any(write_borrowed(tmp_path / "tiny", "stablelm", {"group_size": 32, "bits": 4}), allow_mlx_lm=True)
    assert not isinstance(found, TextCheckpoint)
    assert (found.name, found.format, found.architecture) == ("tiny", "safetensors", "stablelm")
    assert (found.config["vocab_size"], found.limits.max_position_embeddings) == (VOCAB_SIZE, 512)
    assert found.eos_token_ids == {END_TOKEN_ID}
    assert found.quantization is not None
    assert found.quantization.default == LayerQuantization(4, 32)
    assert len(found.revision) == 16


def test_an_architecture_of_our_own_is_ours_though_mlx_lm_knows_it(tmp_path: Path) -> None:
    assert isinstance(open_any(write_llama(tmp_path / "tiny"), allow_mlx_lm=True), TextCheckpoint)


def test_what_is_not_allowed_is_refused_with_the_setting_s_name(tmp_path: Path) -> None:
    error = refusal(write_borrowed(tmp_path / "tiny", "stablelm"), allow_mlx_lm=False)
    assert (error.file, error.key) == ("config.json", "model_type")
    assert error.problem.startswith("the architecture stablelm is not one of llama, ")
    assert error.problem.endswith("; allow_mlx_lm lets mlx-lm run others")


def test_what_is_allowed_and_not_installed_is_refused_with_the_extra_s_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_borrowed(tmp_path / "tiny", "stablelm")
    monkeypatch.setattr("models.borrowed.known._folder", lambda: None)
    error = refusal(folder)
    assert (error.file, error.key) == ("config.json", "model_type")
    assert "the architecture stablelm is not known here" in error.problem
    assert "pip install 'pomona[mlx-lm]'" in error.problem


@pytest.mark.parametrize("model_type", ["unheard_of", "cache", "../stablelm"])
def test_what_neither_knows_is_refused_by_name(tmp_path: Path, model_type: str) -> None:
    error = refusal(rewrite(write_borrowed(tmp_path / "tiny", "stablelm"), model_type=model_type))
    assert (error.file, error.key) == ("config.json", "model_type")
    assert error.problem == f"the architecture {model_type} is known neither here nor to mlx-lm"


def test_a_wrapper_is_known_by_its_own_name(tmp_path: Path) -> None:
    folder = write_borrowed(tmp_path / "tiny", "stablelm")
    config = json.loads((folder / "config.json").read_text())
    nested = {"model_type": "qwen3_vl", "text_config": {**config, "model_type": "qwen3_vl_text"}}
    (folder / "config.json").write_text(json.dumps(nested))
    found = open_any(folder, allow_mlx_lm=True)
    assert (found.architecture, found.config["vocab_size"]) == ("qwen3_vl", VOCAB_SIZE)


@pytest.mark.parametrize(
    ("changes", "longest"),
    [
        ({"max_position_embeddings": None, "n_positions": 99}, 99),
        ({"max_position_embeddings": None, "max_seq_len": 77}, 77),
        ({"max_position_embeddings": None}, None),
    ],
)
def test_the_longest_sequence_has_several_names(tmp_path: Path, changes: dict[str, Any], longest: int | None) -> None:
    folder = rewrite(write_borrowed(tmp_path / "tiny", "stablelm"), **changes)
    assert open_any(folder, allow_mlx_lm=True).limits.max_position_embeddings == longest


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"model_file": "graph.py"}, "model_file"),
        ({"vocab_size": None}, "vocab_size"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"max_position_embeddings": 0}, "max_position_embeddings"),
        ({"quantization": {"bits": 9, "group_size": 64}}, "quantization.bits"),
        (
            {"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized"}},
            "quantization_config.quant_method",
        ),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "quantization_config.quant_method"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantization_config.quant_method"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config.quant_method"),
    ],
)
def test_what_a_config_may_not_say_is_refused_by_key(tmp_path: Path, changes: dict[str, Any], key: str) -> None:
    error = refusal(rewrite(write_borrowed(tmp_path / "tiny", "stablelm"), **changes))
    assert (error.file, error.key) == ("config.json", key)


def add_shard(folder: Path) -> str:
    mx.save_safetensors(str(folder / "model-extra.safetensors"), {"x": mx.ones(3)})
    return "model-extra.safetensors"


def rename_weights(folder: Path) -> str:
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    return "weights.safetensors"


def cut_weights(folder: Path) -> str:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:-1])
    return "model.safetensors"


def take_tokenizer(folder: Path) -> str:
    (folder / "tokenizer.json").unlink()
    return "tokenizer.json"


@pytest.mark.parametrize("change", [add_shard, rename_weights, cut_weights, take_tokenizer])
def test_files_are_those_whose_headers_were_checked(tmp_path: Path, change: Callable[[Path], str]) -> None:
    folder = write_borrowed(tmp_path / "tiny", "stablelm")
    file = change(folder)
    assert refusal(folder).file == file


def test_a_config_that_cannot_be_read_is_told_as_ever(tmp_path: Path) -> None:
    folder = write_borrowed(tmp_path / "tiny", "stablelm")
    (folder / "config.json").write_text("{")
    assert isinstance(refusal(folder), CheckpointCorrupt)
    assert isinstance(refusal(tmp_path / "none"), CheckpointError)


def test_opening_runs_no_mlx_and_no_mlx_lm(tmp_path: Path) -> None:
    folder = write_borrowed(tmp_path / "tiny", "stablelm")
    program = (
        "import sys; from pathlib import Path; from models.borrowed.checkpoint import open_any;"
        f"print(open_any(Path({str(folder)!r}), allow_mlx_lm=True).architecture,"
        " sorted({'mlx', 'mlx_lm', 'transformers'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50)
    assert ended.stdout.strip() == "stablelm []"
