"""A view gives an architecture the names and values that its graph asks for, whatever generation wrote them."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from models.checkpoint.checkpoint import Checkpoint, open_checkpoint
from models.checkpoint.errors import CheckpointCorrupt
from models.checkpoint.shards import Shards
from models.checkpoint.view import WeightsView
from models.checkpoint.weights import Weights
from models.layers.linear import QuantizedLinear
from tests.support.tiny_models import write_llama, write_tensors

NORM, CONV, UP = "model.norm.weight", "model.layers.0.conv1d.weight", "model.layers.0.mlp.up_proj.weight"
Q4: dict[str, Any] = {"group_size": 32, "bits": 4, "model.layers.0.mlp.up_proj": {"group_size": 64, "bits": 8}}
STORED = {
    "backbone.norm.weight": mx.arange(64).astype(mx.float32) / 64,
    "backbone.layers.0.conv1d.weight": mx.arange(24).reshape(4, 1, 6).astype(mx.float32),
    "mtp.layers.0.weight": mx.ones((2, 2)),
}
NAMES = {NORM: "backbone.norm.weight", CONV: "backbone.layers.0.conv1d.weight"}


def checkpoint_of(folder: Path) -> Checkpoint:
    written = write_llama(folder)
    write_tensors(written, STORED)
    return open_checkpoint(written)


def repair(name: str, array: mx.array) -> mx.array | None:
    if name == NORM:
        return array + 1
    return mx.moveaxis(array, 2, 1) if name == CONV else None


def test_a_view_renames_drops_and_repairs(tmp_path: Path) -> None:
    weights = Weights(checkpoint_of(tmp_path / "tiny"), mx.float32, view=WeightsView(NAMES, repair))
    assert not weights.has("mtp.layers.0.weight")
    assert not weights.has("backbone.norm.weight")
    assert mx.array_equal(weights.tensor(NORM, (64,)), STORED["backbone.norm.weight"] + 1)
    moved = mx.moveaxis(STORED["backbone.layers.0.conv1d.weight"], 2, 1)
    assert mx.array_equal(weights.tensor(CONV, (4, 6, 1)), moved)
    weights.audit()


def test_names_of_the_graph_that_were_not_asked_for_are_left_over_by_their_stored_name(tmp_path: Path) -> None:
    weights = Weights(checkpoint_of(tmp_path / "tiny"), mx.float32, view=WeightsView(NAMES))
    weights.tensor(NORM, (64,))
    with pytest.raises(Exception, match=r"backbone\.layers\.0\.conv1d\.weight: is no part of this model"):
        weights.audit()


def test_a_shape_is_that_of_the_repaired_tensor(tmp_path: Path) -> None:
    weights = Weights(checkpoint_of(tmp_path / "tiny"), mx.float32, view=WeightsView(NAMES, repair))
    with pytest.raises(CheckpointCorrupt) as caught:
        weights.tensor(CONV, (4, 1, 6))
    assert (caught.value.key, caught.value.problem) == (NAMES[CONV], "has shape 4 x 6 x 1, not 4 x 1 x 6")


def test_a_repair_happens_when_a_tensor_is_asked_for_and_once(tmp_path: Path) -> None:
    asked: list[str] = []

    def count(name: str, array: mx.array) -> mx.array | None:
        asked.append(name)
        return repair(name, array)

    view = WeightsView({**NAMES, "mtp": "mtp.layers.0.weight"}, count)
    shards = Shards(view.of(checkpoint_of(tmp_path / "tiny")), repair=view.repair)
    assert asked == []
    first = shards.array(NORM)
    assert shards.array(NORM) is first
    assert mx.array_equal(shards.array("mtp"), STORED["mtp.layers.0.weight"])
    assert asked == [NORM, "mtp"]
    shards.release(NORM)
    assert mx.array_equal(shards.array(NORM), first)
    assert asked == [NORM, "mtp", NORM]


def test_a_name_without_a_tensor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointCorrupt) as caught:
        WeightsView({NORM: "backbone.other.weight"}).of(checkpoint_of(tmp_path / "tiny"))
    assert (caught.value.file, caught.value.key) == ("model.safetensors", "backbone.other.weight")


def test_what_is_said_of_packing_follows_the_names(tmp_path: Path) -> None:
    stored = open_checkpoint(write_llama(tmp_path / "tiny", quantization=Q4))
    renamed = {name.replace("up_proj", "rise"): name for name in stored.tensors}
    weights = Weights(stored, mx.float32, view=WeightsView(renamed))
    layer = weights.linear("model.layers.0.mlp.rise", 128, 64)
    assert isinstance(layer, QuantizedLinear)
    assert (layer.weight.bits, layer.weight.group_size) == (8, 64)
    plain = Weights(stored, mx.float32).linear("model.layers.0.mlp.up_proj", 128, 64)
    assert isinstance(plain, QuantizedLinear)
    assert mx.array_equal(layer.weight.codes, plain.weight.codes)
