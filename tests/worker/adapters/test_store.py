"""The store of adapters: names are looked up and never paths."""

from pathlib import Path

import pytest

from tests.support.tiny_adapters import write_random
from worker.adapters.store import AdapterStore


@pytest.fixture
def store(tmp_path: Path) -> AdapterStore:
    for name in ("a", "org/b", "org/c", "not a name", "org/.hidden"):
        write_random(tmp_path / "store" / name)
    (tmp_path / "store" / "empty").mkdir()
    (tmp_path / "store" / "a" / "inner").mkdir()
    write_random(tmp_path / "outside")
    return AdapterStore(tmp_path / "store")


def test_lists_folders_with_weights_by_name(store: AdapterStore) -> None:
    assert store.names() == ["a", "org/b", "org/c"]


@pytest.mark.parametrize("name", ["a", "org/b"])
def test_finds_what_it_lists(store: AdapterStore, tmp_path: Path, name: str) -> None:
    assert store.find(name) == tmp_path / "store" / name


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../outside", "org/../../outside", "empty", "org", "a/inner", "not a name", "A", "/etc"]
)
def test_finds_nothing_else(store: AdapterStore, name: str) -> None:
    assert store.find(name) is None


def test_what_is_put_there_later_is_found(store: AdapterStore, tmp_path: Path) -> None:
    write_random(tmp_path / "store" / "later")
    assert store.find("later") is not None


def test_no_folder_has_none(tmp_path: Path) -> None:
    for folder in (None, tmp_path / "nowhere"):
        assert (AdapterStore(folder).names(), AdapterStore(folder).find("a")) == ([], None)
