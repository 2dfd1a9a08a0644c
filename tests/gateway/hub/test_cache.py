"""The hub's cache: where it is, what is listed of it, and what a removal leaves."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.hub.cache import cache_folder, cached_models, remove
from gateway.hub.pulled import FILE, Pulled, read_pulled, remember

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
FIRST, SECOND = "a" * 40, "b" * 40


def write(
    cache: Path,
    repository: str = "org/m",
    revision: str = FIRST,
    *,
    config: object = LLAMA,
    files: dict[str, bytes] | None = None,
    branch: str = "main",
) -> Path:
    """Write a snapshot as huggingface_hub would, and return the repository's folder."""
    home = cache / f"models--{repository.replace('/', '--')}"
    contents = {"config.json": json.dumps(config).encode(), **(files or {"model.safetensors": b"weights"})}
    for name, content in contents.items():
        blob = home / "blobs" / hashlib.sha1(name.encode() + content).hexdigest()
        link = home / "snapshots" / revision / name
        for path in (blob, link):
            path.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content)
        link.unlink(missing_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    if branch:
        (home / "refs").mkdir(exist_ok=True)
        (home / "refs" / branch).write_text(revision)
    return home


def names(cache: Path) -> list[str]:
    return [model.name for model in cached_models(cache)]


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"HF_HOME": "/x/home"},
        {"HF_HOME": "~/h"},
        {"HF_HOME": "$ROOT_OF_ALL/h"},
        {"XDG_CACHE_HOME": "/x/cache"},
        {"HF_HUB_CACHE": "/x/hub", "HF_HOME": "/y"},
        {"HUGGINGFACE_HUB_CACHE": "/x/old", "HF_HOME": "/y"},
    ],
    ids=str,
)
def test_the_cache_is_where_huggingface_hub_has_it(variables: dict[str, str]) -> None:
    environment = {"HOME": "/home/somebody", "ROOT_OF_ALL": "/r", **variables}
    code = (
        "import os; from pathlib import Path; from gateway.hub.cache import cache_folder;"
        "from huggingface_hub import constants; print(cache_folder(os.environ) == Path(constants.HF_HUB_CACHE))"
    )
    told = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert told.stdout == "True\n"


def test_a_cache_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert cached_models(tmp_path / "none") == []
    assert cached_models(cache_folder({"HF_HUB_CACHE": str(tmp_path)})) == []


def test_a_model_of_another_program_is_listed_by_its_repository(tmp_path: Path) -> None:
    write(tmp_path)
    (model,) = cached_models(tmp_path)
    assert (model.name, model.repository, model.revision) == ("org/m", "org/m", FIRST)
    assert model.checkpoint == tmp_path / "models--org--m" / "snapshots" / FIRST
    assert model.size_bytes() == len(b"weights") + len(json.dumps(LLAMA))
    assert model.last_used_s() > 0


@pytest.mark.parametrize(
    ("config", "files"),
    [
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, {"model.safetensors": b"w"}),
        ({"model_type": "clip", "architectures": ["CLIPModel"]}, {"model.safetensors": b"w"}),
        (LLAMA, {"pytorch_model.bin": b"w"}),
        ({}, {"model.bin": b"w"}),
        ([], {"model.safetensors": b"w"}),
        (LLAMA, {"model.safetensors.index.json": b'{"weight_map": {"a": "model-1.safetensors"}}'}),
        (LLAMA, {"model.safetensors.index.json": b"[", "model.safetensors.x": b""}),
    ],
)
def test_what_could_not_be_served_is_not_listed(tmp_path: Path, config: object, files: dict[str, bytes]) -> None:
    write(tmp_path, config=config, files=files)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("config", "files"),
    [
        ({"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"]}, {"model.safetensors": b"w"}),
        ({"suppress_ids": [1]}, {"model.bin": b"w"}),
        ({"n_mels": 80}, {"weights.safetensors": b"w"}),
        ({"model_type": "qwen3", "architectures": ["Qwen3Model"]}, {"modules.json": b"[]", "model.safetensors": b"w"}),
        ({"model_type": "llama"}, {"model.safetensors": b"w"}),
    ],
)
def test_what_could_be_served_is_listed(tmp_path: Path, config: object, files: dict[str, bytes]) -> None:
    write(tmp_path, config=config, files=files)
    assert names(tmp_path) == ["org/m"]


def test_the_main_branch_goes_before_other_revisions(tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path, revision=SECOND, branch="")
    assert [model.revision for model in cached_models(tmp_path)] == [FIRST]


@pytest.mark.parametrize("content", ["[", "{}", '{"models": 3}', '{"models": [{"name": "x"}]}', "[" * 10_000])
def test_a_note_that_cannot_be_read_counts_as_none(tmp_path: Path, content: str) -> None:
    home = write(tmp_path)
    (home / FILE).write_text(content)
    assert names(tmp_path) == ["org/m"]


@pytest.mark.parametrize("revision", ["../../x", "..", "", "/etc"])
def test_a_note_cannot_lead_out_of_the_repository(tmp_path: Path, revision: str) -> None:
    home = write(tmp_path)
    remember(home, Pulled("evil", revision))
    assert read_pulled(home) == []


def test_models_that_were_pulled_have_the_names_they_were_given(tmp_path: Path) -> None:
    home = write(tmp_path, files={"model.safetensors": b"w", "q.gguf": b"g"})
    remember(home, Pulled("mine", FIRST))
    remember(home, Pulled("small", FIRST, "q.gguf"))
    found = {model.name: model for model in cached_models(tmp_path)}
    assert set(found) == {"mine", "small"}
    assert found["small"].checkpoint.name == "q.gguf"
    assert found["small"].size_bytes() == 1
    assert found["mine"].size_bytes() == 1 + len(json.dumps(LLAMA))


def test_the_last_model_takes_its_repository_along(tmp_path: Path) -> None:
    home = write(tmp_path)
    write(tmp_path, "org/other")
    (home / "blobs" / "x.incomplete").write_bytes(b"12345")
    (model, _) = cached_models(tmp_path)
    freed = remove(tmp_path, model)
    assert freed >= model.size_bytes() + 5
    assert not home.exists()
    assert names(tmp_path) == ["org/other"]


def test_other_models_of_a_repository_keep_their_files(tmp_path: Path) -> None:
    home = write(tmp_path, files={"model.safetensors": b"w" * 100, "q.gguf": b"g" * 50})
    remember(home, Pulled("mine", FIRST))
    remember(home, Pulled("small", FIRST, "q.gguf"))
    mine, small = cached_models(tmp_path)
    assert remove(tmp_path, small) >= 50
    assert {path.name for path in mine.files()} == {"config.json", "model.safetensors"}
    assert mine.size_bytes() == 100 + len(json.dumps(LLAMA))
    assert names(tmp_path) == ["mine"]


def test_an_older_revision_of_one_name_goes_with_it_and_shared_files_stay(tmp_path: Path) -> None:
    write(tmp_path, files={"model.safetensors": b"old" * 10})
    home = write(tmp_path, revision=SECOND, files={"model.safetensors": b"new" * 10})
    remember(home, Pulled("old", FIRST))
    remember(home, Pulled("new", SECOND))
    new, old = cached_models(tmp_path)
    remove(tmp_path, old)
    assert not (home / "snapshots" / FIRST).exists()
    assert (new.checkpoint / "config.json").read_bytes() == json.dumps(LLAMA).encode()
    assert len(list((home / "blobs").iterdir())) == 2


def test_a_server_that_pulls_nothing_does_not_import_the_library() -> None:
    code = "import sys, gateway.server, gateway.cli.serve; print('huggingface_hub' in sys.modules)"
    told = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"
