"""A model and an adapter made one: what is written, that it answers as the mounted form, and what is refused."""

import errno
import fcntl
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from models.adapters.errors import AdapterMissing, AdapterRejected
from models.checkpoint.checkpoint import open_checkpoint
from models.checkpoint.errors import CheckpointRejected
from models.checkpoint.safetensors import read_safetensors_header
from models.fusing import plan, writing
from models.fusing.comparison import MAX_SHARE, Comparison
from models.fusing.errors import FuseBusy, FuseDiffers, FuseDiskFull, FuseOutputExists, FuseUnwritable
from tests.models.fusing.folders import Folders, write
from tests.support.tiny_adapters import factors, llama_targets
from tests.support.tiny_checkpoints import write_llama_gguf

Q4 = {"group_size": 32, "bits": 4}
Q8 = {"group_size": 32, "bits": 8}
FORMS: dict[str, dict[str, Any] | None] = {
    "dense": None,
    "4-bit": Q4,
    "mxfp4": {"group_size": 32, "bits": 4, "mode": "mxfp4"},
    "nvfp4": {"group_size": 16, "bits": 4, "mode": "nvfp4"},
}
CHANGED = "model.layers.0.self_attn.q_proj"


def arrays(folder: Path) -> dict[str, mx.array]:
    loaded = mx.load(str(folder / "model.safetensors"))
    assert isinstance(loaded, dict)
    return loaded


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("layout", ["mlx", "peft"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_answers_as_the_model_with_the_adapter_mounted(tmp_path: Path, form: str, layout: Any) -> None:
    fused = write(tmp_path, FORMS[form], layout=layout).fuse()
    assert fused.comparison.effect > 0.1
    assert fused.comparison.share < 0.03
    assert fused.comparison.num_agreeing >= fused.comparison.num_tokens - 1
    assert fused.plan.num_unpacked == (0 if form == "dense" else 4)


def test_weights_have_the_product_in_them_and_others_every_byte(tmp_path: Path) -> None:
    folders = write(tmp_path)
    folders.fuse()
    before, after = arrays(folders.model), arrays(folders.output)
    assert before.keys() == after.keys()
    changed = [name for name in before if not mx.array_equal(before[name], after[name])]
    assert sorted(changed) == sorted(
        f"model.layers.{layer}.{module}.weight" for layer in (0, 1) for module in ("self_attn.q_proj", "mlp.down_proj")
    )
    chosen = [target for name, target in llama_targets().items() if name.endswith(("q_proj", "down_proj"))]
    a, b = factors(chosen)[CHANGED]
    expected = np.array(before[f"{CHANGED}.weight"], np.float32) + 2.0 * (a @ b).T
    np.testing.assert_allclose(np.array(after[f"{CHANGED}.weight"], np.float32), expected, rtol=0, atol=1e-2)


def test_what_is_beside_the_weights_comes_along(tmp_path: Path) -> None:
    folders = write(tmp_path, Q4)
    header = read_safetensors_header(folders.model / "model.safetensors")
    folders.fuse()
    assert names_in(folders.output) == names_in(folders.model)
    assert read_safetensors_header(folders.output / "model.safetensors").metadata == header.metadata
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "fused", "model"]


def test_unpacked_layers_are_floats_and_others_stay_packed(tmp_path: Path) -> None:
    folders = write(tmp_path, Q4)
    folders.fuse()
    checkpoint = open_checkpoint(folders.output)
    assert checkpoint.layer_quantization(CHANGED) is None
    assert str(checkpoint.layer_quantization("model.layers.0.self_attn.k_proj")) == "affine 4-bit g32"


def test_a_layer_that_the_config_names_is_named_as_unpacked(tmp_path: Path) -> None:
    folders = write(tmp_path, Q4)
    path = folders.model / "config.json"
    config = json.loads(path.read_text())
    config["quantization"][CHANGED] = Q4
    path.write_text(json.dumps(config))
    folders.fuse()
    assert json.loads((folders.output / "config.json").read_text())["quantization"][CHANGED] is False


def test_layers_are_packed_again_where_that_keeps_the_adapter(tmp_path: Path) -> None:
    folders = write(tmp_path, Q8)
    fused = folders.fuse(packs_again=True)
    assert (fused.plan.num_packed, fused.plan.num_unpacked) == (4, 0)
    assert 0 < fused.comparison.share < 0.1
    checkpoint = open_checkpoint(folders.output)
    assert str(checkpoint.layer_quantization(CHANGED)) == "affine 8-bit g32"
    before, after = (read_safetensors_header(at / "model.safetensors") for at in (folders.model, folders.output))
    assert {name: (x.dtype, x.shape) for name, x in before.tensors.items()} == {
        name: (x.dtype, x.shape) for name, x in after.tensors.items()
    }


def test_packing_that_loses_the_adapter_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    folders = write(tmp_path, Q4, size=0.05)
    with pytest.raises(FuseDiffers, match="of what the adapter changes, and 25% are allowed"):
        folders.fuse(packs_again=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "model"]


def test_small_floats_are_never_packed_again(tmp_path: Path) -> None:
    fused = write(tmp_path, FORMS["mxfp4"]).fuse(packs_again=True)
    assert (fused.plan.num_packed, fused.plan.num_unpacked) == (0, 4)


def test_weights_that_do_not_have_the_adapter_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the layer's own numbers were written in place of the sum."""
    folders = write(tmp_path)
    made = writing.fused_parts

    def of_the_base(layer: Any, numbers: Any) -> Any:
        from dataclasses import replace

        return made(layer, replace(numbers, scale=0.0))

    monkeypatch.setattr(writing, "fused_parts", of_the_base)
    with pytest.raises(FuseDiffers, match="100% of what the adapter changes"):
        folders.fuse()


def test_shards_stay_shards(tmp_path: Path) -> None:
    folders = write(tmp_path)
    tensors = arrays(folders.model)
    (folders.model / "model.safetensors").unlink()
    half = len(tensors) // 2
    parts = {"model-1.safetensors": list(tensors)[:half], "model-2.safetensors": list(tensors)[half:]}
    for file, names in parts.items():
        mx.save_safetensors(str(folders.model / file), {name: tensors[name] for name in names}, {"format": "mlx"})
    index = {"weight_map": {name: file for file, names in parts.items() for name in names}}
    (folders.model / "model.safetensors.index.json").write_text(json.dumps(index))
    folders.fuse()
    written = json.loads((folders.output / "model.safetensors.index.json").read_text())
    assert written["weight_map"] == index["weight_map"]


def test_something_at_its_place_stays(tmp_path: Path) -> None:
    folders = write(tmp_path)
    folders.output.mkdir()
    with pytest.raises(FuseOutputExists, match="fused is there already"):
        folders.fuse()


def test_a_gguf_file_is_refused(tmp_path: Path) -> None:
    folders = write(tmp_path)
    gguf = write_llama_gguf(tmp_path / "tiny.gguf")
    with pytest.raises(CheckpointRejected, match="no folder of safetensors files"):
        Folders(gguf, folders.adapter, folders.output).fuse()


def test_adapters_are_refused_as_when_they_are_mounted(tmp_path: Path) -> None:
    folders = write(tmp_path)
    with pytest.raises(AdapterMissing):
        Folders(folders.model, tmp_path / "none", folders.output).fuse()
    (folders.adapter / "adapter_config.json").write_text('{"use_dora": true}')
    with pytest.raises(AdapterRejected, match="DoRA"):
        folders.fuse()
    assert not folders.output.exists()


def test_a_full_disk_is_told_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = write(tmp_path)
    monkeypatch.setattr(plan, "SPARE_BYTES", 1 << 60)
    with pytest.raises(FuseDiskFull, match="and 0 are free"):
        folders.fuse()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "model"]


def test_a_name_that_the_disk_does_not_take_is_told(tmp_path: Path) -> None:
    folders = write(tmp_path)
    folders = replace(folders, output=tmp_path / ("x" * 300))
    with pytest.raises(FuseUnwritable, match="File name too long"):
        folders.fuse()


def test_files_of_somebody_else_in_its_place_stay(tmp_path: Path) -> None:
    folders = write(tmp_path)
    mine = tmp_path / ".fused.partial"
    mine.mkdir()
    (mine / "notes").write_text("mine")
    with pytest.raises(FuseUnwritable, match="holds what no fusing left there"):
        folders.fuse()
    assert [(path.name, path.read_text()) for path in mine.iterdir()] == [("notes", "mine")]


def test_a_folder_of_somebody_else_in_its_place_stays(tmp_path: Path) -> None:
    folders = write(tmp_path)
    mine = tmp_path / ".fused.partial" / "mine"
    mine.mkdir(parents=True)
    (mine.parent / "notes").touch()
    with pytest.raises(FuseUnwritable, match="holds what no fusing left there"):
        folders.fuse()
    assert sorted(path.name for path in mine.parent.iterdir()) == ["mine", "notes"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_becomes_full_is_told_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    folders = write(tmp_path)

    def full(_: int) -> None:
        raise OSError(code, "full")

    monkeypatch.setattr(writing.os, "fsync", full)
    with pytest.raises(FuseDiskFull, match="it became full") as refused:
        folders.fuse()
    assert set(refused.value.metadata) == {"neededBytes"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "model"]


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    folders = write(tmp_path)
    with pytest.raises(FuseUnwritable, match="No such file"):
        Folders(folders.model, folders.adapter, tmp_path / "none" / "fused").fuse()


def test_another_process_that_writes_the_same_is_told_and_left_alone(tmp_path: Path) -> None:
    folders = write(tmp_path)
    partial = tmp_path / ".fused.partial"
    partial.mkdir()
    held = os.open(partial, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(FuseBusy):
            folders.fuse()
        assert partial.is_dir()
    finally:
        os.close(held)


def test_what_a_killed_process_left_is_taken_over(tmp_path: Path) -> None:
    folders = write(tmp_path)
    (tmp_path / ".fused.partial").mkdir()
    (tmp_path / ".fused.partial" / ".pomona-fuse").touch()
    (tmp_path / ".fused.partial" / "stray").write_text("half")
    folders.fuse()
    assert names_in(folders.output) == names_in(folders.model)


def test_one_that_is_ended_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = write(tmp_path)

    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(writing, "copy_auxiliary_files", interrupt)
    with pytest.raises(KeyboardInterrupt):
        folders.fuse()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "model"]


@pytest.mark.parametrize(
    ("effect", "difference", "is_right"),
    [
        (1.0, 0.0, True),
        (1.0, MAX_SHARE, True),
        (1.0, 1.0, False),
        (0.0, 0.0, True),
        (0.0, 0.1, False),
        (1.0, float("nan"), False),
    ],
)
def test_what_is_too_far_off_is_refused(effect: float, difference: float, is_right: bool) -> None:
    comparison = Comparison(effect, difference, 8, 8)
    if is_right:
        comparison.check()
    else:
        with pytest.raises(FuseDiffers):
            comparison.check()
