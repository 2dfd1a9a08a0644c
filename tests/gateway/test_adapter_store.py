from pathlib import Path

from gateway.adapter_store import MAX_LISTED, WEIGHTS_FILES, stored_adapters


def put(folder: Path, name: str, file: str = "adapters.safetensors") -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / file).touch()


def test_adapters_are_found_by_name_and_by_organisation(tmp_path: Path) -> None:
    put(tmp_path, "b")
    put(tmp_path, "a", "adapter_model.safetensors")
    put(tmp_path, "org/c")
    assert stored_adapters(tmp_path) == ("a", "b", "org/c")


def test_what_is_no_adapter_or_has_no_name_is_not_listed(tmp_path: Path) -> None:
    put(tmp_path, ".hidden")
    put(tmp_path, "with space")
    put(tmp_path, "one/two/three")
    put(tmp_path, "empty", "README.md")
    (tmp_path / "adapters.safetensors").touch()
    assert stored_adapters(tmp_path) == ()


def test_without_a_folder_there_are_none(tmp_path: Path) -> None:
    assert stored_adapters(None) == stored_adapters(tmp_path / "missing") == ()


def test_a_worker_finds_what_the_gateway_lists(tmp_path: Path) -> None:
    from models.adapters import files
    from worker.adapters.store import MAX_LISTED as MAX_FOUND
    from worker.adapters.store import AdapterStore

    assert (set(WEIGHTS_FILES), MAX_LISTED) == (set(files.WEIGHTS_FILES), MAX_FOUND)
    for name in ("b", "org/c", ".hidden", "with space", "one/two/three"):
        put(tmp_path, name)
    assert tuple(AdapterStore(tmp_path).names()) == stored_adapters(tmp_path) == ("b", "org/c")
