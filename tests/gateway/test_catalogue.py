"""Names, aliases, and what is remembered of checkpoints."""

import os
from pathlib import Path

import pytest
from pomona.v1 import model_pb2

from gateway.catalogue import Catalogue, CatalogueModel, is_name
from gateway.errors import CheckpointCorrupt, CheckpointRejected, LoadError, ModelNotFound
from gateway.model_status import LoadOptions


class Reader:
    def __init__(self, failure: LoadError | None = None) -> None:
        self.failure = failure
        self.reads: list[str] = []

    async def describe(self, model: CatalogueModel) -> model_pb2.Model:
        self.reads.append(model.name)
        if self.failure is not None:
            raise self.failure
        return model_pb2.Model(architecture=f"read {len(self.reads)}")


def model(name: str, *aliases: str, checkpoint: Path = Path("/nowhere")) -> CatalogueModel:
    return CatalogueModel(name, checkpoint, aliases)


def folder(path: Path) -> Path:
    path.mkdir()
    (path / "config.json").write_text("{}")
    return path


def test_finds_a_model_by_name_and_by_alias() -> None:
    catalogue = Catalogue([model("b"), model("org/a", "x", "y")], Reader().describe)
    assert {catalogue.resolve(name).name for name in ("org/a", "x", "y")} == {"org/a"}
    assert [one.name for one in catalogue.models] == ["b", "org/a"]


def test_an_unknown_name_tells_of_no_other() -> None:
    with pytest.raises(ModelNotFound) as caught:
        Catalogue([model("b"), model("a")], Reader().describe).resolve("../b")
    assert caught.value.known == ()  # whoever asks may not know of them


@pytest.mark.parametrize("models", [[model("a"), model("a")], [model("a"), model("b", "a")], [model("a", "a")]])
def test_a_name_means_one_model(models: list[CatalogueModel]) -> None:
    with pytest.raises(ValueError, match="'a'"):
        Catalogue(models, Reader().describe)


def test_a_name_that_no_client_can_send_is_refused() -> None:
    with pytest.raises(ValueError, match="not a model name"):
        Catalogue([model("a b")], Reader().describe)


@pytest.mark.parametrize("name", ["a", "A.b-c_d", "org/model", "0"])
def test_names_that_may_be(name: str) -> None:
    assert is_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "-a", "a/", "/a", "a/b/c", "a b", "a\n", "ä", "a/.b", "x" * 201])
def test_names_that_may_not_be(name: str) -> None:
    assert not is_name(name)


async def test_a_checkpoint_is_read_once(tmp_path: Path) -> None:
    reader = Reader()
    entry = model("a", checkpoint=folder(tmp_path / "a"))
    catalogue = Catalogue([entry], reader.describe)
    assert (await catalogue.describe(entry)).facts.architecture == "read 1"
    assert (await catalogue.describe(entry)).facts.architecture == "read 1"
    assert reader.reads == ["a"]


async def test_a_changed_checkpoint_is_read_again(tmp_path: Path) -> None:
    entry = model("a", checkpoint=folder(tmp_path / "a"))
    catalogue = Catalogue([entry], Reader().describe)
    await catalogue.describe(entry)
    os.utime(tmp_path / "a" / "config.json", ns=(1, 1))
    assert (await catalogue.describe(entry)).facts.architecture == "read 2"


async def test_a_single_file_is_a_checkpoint_too(tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    file.write_bytes(b"GGUF")
    entry = model("a", checkpoint=file)
    catalogue = Catalogue([entry], Reader().describe)
    assert (await catalogue.describe(entry)).failure is None


async def test_a_folder_that_is_not_there_is_a_failure_without_its_path() -> None:
    reader = Reader()
    entry = model("a", checkpoint=Path("/secret/place/a"))
    description = await Catalogue([entry], reader.describe).describe(entry)
    assert isinstance(description.failure, CheckpointRejected)
    assert "secret" not in str(description.failure) + str(description.failure.facts)
    assert reader.reads == []


async def test_a_checkpoint_that_appears_is_read(tmp_path: Path) -> None:
    entry = model("a", checkpoint=tmp_path / "a")
    catalogue = Catalogue([entry], Reader().describe)
    assert (await catalogue.describe(entry)).failure is not None
    folder(tmp_path / "a")
    assert (await catalogue.describe(entry)).failure is None


async def test_what_is_wrong_with_a_checkpoint_is_remembered_until_it_changes(tmp_path: Path) -> None:
    reader = Reader(CheckpointCorrupt("a", "too short."))
    entry = model("a", checkpoint=folder(tmp_path / "a"))
    catalogue = Catalogue([entry], reader.describe)
    for _ in range(2):
        assert isinstance((await catalogue.describe(entry)).failure, CheckpointCorrupt)
    assert reader.reads == ["a"]


async def test_what_is_wrong_with_a_checkpoint_is_forgotten_by_a_refresh(tmp_path: Path) -> None:
    reader = Reader(CheckpointCorrupt("a", "too short."))
    entry = model("a", checkpoint=folder(tmp_path / "a"))
    catalogue = Catalogue([entry], reader.describe)
    await catalogue.describe(entry)
    reader.failure = None
    catalogue.replace([entry])
    assert (await catalogue.describe(entry)).failure is None
    catalogue.replace([entry])
    await catalogue.describe(entry)
    assert reader.reads == ["a", "a"]


async def test_what_is_configured_has_the_checkpoints_own_context_once_that_was_read(tmp_path: Path) -> None:
    async def describe(_: CatalogueModel) -> model_pb2.Model:
        return model_pb2.Model(limits=model_pb2.ModelLimits(max_context_tokens=2048))

    path = folder(tmp_path / "a")
    small, own, large = (CatalogueModel(f"m{tokens}", path, (), tokens) for tokens in (512, None, 4096))
    catalogue = Catalogue([small, own, large], describe)
    assert catalogue.configured(own) == LoadOptions(None, 16, "none", "auto")
    slabs = CatalogueModel("slabs", own.checkpoint, experts="slab", expert_budget=1 << 30)
    assert catalogue.configured(slabs) == LoadOptions(None, 16, "none", "slab", 1 << 30)
    for one in catalogue.models:
        await catalogue.describe(one)
    assert [catalogue.configured(one).context_tokens for one in (small, own, large)] == [512, 2048, 2048]
