"""A step whose experts cannot be read ends its requests with a reason, also where vectors are made."""

from dataclasses import replace
from pathlib import Path

import pytest

from models.checkpoint.checkpoint import open_checkpoint
from models.embedding.embedder import for_vectors, read_embedder
from models.experts.options import ExpertsMode, ExpertsOptions
from models.registry import load
from models.step import NumericPath
from native import kernels
from tests.models.experts.slab_models import least_budget_of
from tests.support.tiny_embedders import TIED, write_embedder
from tests.support.tiny_families import Tiny
from tests.worker.embedding.driving import Driven, asking, load_encoder
from worker.errors import CheckpointCorrupt

pytestmark = pytest.mark.skipif(not kernels.is_available(), reason="built without the native extension")


def test_experts_that_cannot_be_read_end_their_requests_alone(tmp_path: Path) -> None:
    folder = write_embedder(tmp_path / "tiny", tiny=Tiny("qwen3_moe", {**TIED, "num_experts": 24}))
    whole = load_encoder(folder)
    expected = Driven(whole).encode(asking("r", range(3, 90)))
    file = folder / "model.safetensors"
    content = file.read_bytes()
    options = ExpertsOptions(ExpertsMode.SLAB, least_budget_of(folder))
    checkpoint = open_checkpoint(folder)
    checkpoint = for_vectors(checkpoint, read_embedder(checkpoint, folder))
    loaded = replace(whole, model=load(checkpoint, NumericPath.FAST, lambda _: None, experts=options))
    driven = Driven(loaded)
    assert driven.encode(asking("before", range(3, 90))) == expected
    with file.open("r+b") as weights:
        weights.truncate(1000)
    driven.ask(asking("amid", range(90, 200)))
    with pytest.raises(CheckpointCorrupt, match="breaks off") as refused:
        driven.finish()
    assert refused.value.metadata["file"] == file.name
    driven.cancel("amid")
    with file.open("r+b") as weights:
        weights.write(content)
    assert driven.encode(asking("after", range(3, 90))) == expected
    driven.assert_nothing_is_held()
    loaded.model.close()
