"""The models of a folder, by their names."""

from pathlib import Path

from gateway.inventory import Sources
from gateway.models_folder import models_in
from gateway.settings import load_settings
from tests.gateway.hub.test_cache import write


def folder_of(root: Path, *paths: str) -> Path:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    return root


def test_folders_and_files_are_models_by_their_names(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "a/config.json", "b.Q4_1.gguf", "org/c/config.json", "org/d.GGUF")
    assert models_in(folder) == {
        "a": tmp_path / "a",
        "b.Q4_1": tmp_path / "b.Q4_1.gguf",
        "org/c": tmp_path / "org" / "c",
        "org/d": tmp_path / "org" / "d.GGUF",
    }


def test_what_is_no_model_or_has_no_name_is_passed_over(tmp_path: Path) -> None:
    paths = ("notes.txt", ".hidden/config.json", "a b.gguf", "empty/readme.md", "x/y/z/config.json", "-a/config.json")
    assert models_in(folder_of(tmp_path, *paths)) == {}
    (tmp_path / "not.gguf").mkdir()
    assert models_in(tmp_path) == {}


def test_a_folder_goes_before_a_file_of_its_name(tmp_path: Path) -> None:
    assert models_in(folder_of(tmp_path, "a.gguf", "a/config.json")) == {"a": tmp_path / "a"}


def test_links_are_followed(tmp_path: Path) -> None:
    real = folder_of(tmp_path / "elsewhere", "m/config.json")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a").symlink_to(real / "m")
    (tmp_path / "models" / "gone").symlink_to(tmp_path / "nowhere")
    assert models_in(tmp_path / "models") == {"a": tmp_path / "models" / "a"}


def test_a_folder_that_is_not_there_has_none(tmp_path: Path) -> None:
    assert models_in(tmp_path / "nowhere") == {}


def test_settings_go_before_the_folder_and_that_before_the_hub(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "models", "a/config.json", "b/config.json", "org/m/config.json", "c/config.json")
    cache = tmp_path / "hub"
    write(cache)
    told = [{"name": "a", "checkpoint": "/x/a", "aliases": ["c"]}]
    settings = load_settings(None, {"models": told, "models_folder": folder})
    found = Sources(settings, cache, load_settings).find()
    assert {name: model.checkpoint for name, model in found.models.items()} == {
        "a": Path("/x/a"),
        "b": folder / "b",
        "org/m": folder / "org" / "m",
    }
    assert not found.cached
