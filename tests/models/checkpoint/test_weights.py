"""Tensors become layers in the compute dtype, and every one of them is accounted for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from models.checkpoint.checkpoint import open_checkpoint
from models.checkpoint.errors import CheckpointCorrupt, CheckpointError, CheckpointMissing, CheckpointRejected
from models.checkpoint.weights import Weights
from models.layers.arithmetic import Arithmetic
from models.layers.linear import Linear, QuantizedLinear
from models.layers.mlx_arithmetic import MlxArithmetic
from models.layers.native_arithmetic import NativeArithmetic
from models.registry import LoadProgress, load
from models.step import NumericPath
from tests.support.tiny_checkpoints import write_llama_gguf
from tests.support.tiny_models import CONFIG, random_tensors, write_llama, write_tensors

Q4: dict[str, Any] = {"group_size": 32, "bits": 4}
Change = Callable[[dict[str, mx.array]], object]


def weights_of(folder: Path, **options: Any) -> Weights:
    return Weights(open_checkpoint(folder), mx.float32, **options)


def rewrite(folder: Path, change: Change) -> Path:
    """Change the tensors of a checkpoint on disk."""
    file = folder / "model.safetensors"
    loaded: Any = mx.load(str(file))
    tensors: dict[str, mx.array] = dict(loaded)
    mx.eval(tensors)
    change(tensors)
    write_tensors(folder, tensors)
    return folder


def refusal(folder: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        load(open_checkpoint(folder), NumericPath.FAST, lambda _: None)
    return caught.value


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32])
def test_floating_tensors_come_in_the_compute_dtype(tmp_path: Path, dtype: mx.Dtype) -> None:
    name, stored = "model.norm.weight", mx.array(np.linspace(0.5, 1.5, 64).astype(np.float32)).astype(dtype)
    folder = rewrite(write_llama(tmp_path / "tiny"), lambda tensors: tensors.update({name: stored}))
    taken = weights_of(folder).take(name, (64,))
    assert taken.dtype == mx.float32
    assert mx.array_equal(taken, stored.astype(mx.float32))


def test_scales_and_biases_come_in_the_compute_dtype_and_codes_as_stored(tmp_path: Path) -> None:
    def halve(tensors: dict[str, mx.array]) -> None:
        tensors.update({name: array.astype(mx.float16) for name, array in tensors.items() if array.dtype == mx.float32})

    weights = weights_of(rewrite(write_llama(tmp_path / "tiny", quantization=Q4), halve))
    layer = weights.linear("model.layers.0.mlp.up_proj", 128, 64)
    assert isinstance(layer, QuantizedLinear)
    assert [part.dtype for part in layer.weight.parts] == [mx.uint32, mx.float32, mx.float32]


def test_native_kernels_take_scales_and_biases_as_stored(tmp_path: Path) -> None:
    def halve(tensors: dict[str, mx.array]) -> None:
        tensors.update({name: array.astype(mx.float16) for name, array in tensors.items() if array.dtype == mx.float32})
        other = "model.layers.1.mlp.up_proj.biases"
        tensors[other] = tensors[other].astype(mx.bfloat16)

    folder = rewrite(write_llama(tmp_path / "tiny", quantization=Q4, config={"mlp_bias": True}), halve)
    weights = weights_of(folder, arithmetic=NativeArithmetic())
    dtypes: list[tuple[mx.Dtype, ...]] = []
    for index in range(2):
        layer = weights.linear(f"model.layers.{index}.mlp.up_proj", 128, 64, bias=True)
        assert isinstance(layer, QuantizedLinear)
        assert layer.bias is not None
        dtypes.append((layer.weight.scales.dtype, layer.weight.biases.dtype, layer.bias.dtype))
    # Scales and biases that differ have no kernel, so they are made the same.
    assert dtypes == [(mx.float16, mx.float16, mx.float32), (mx.float32, mx.float32, mx.float32)]


def test_native_kernels_take_dense_weights_as_stored(tmp_path: Path) -> None:
    up, gate = ("model.layers.0.mlp.up_proj", "model.layers.0.mlp.gate_proj")

    def halve(tensors: dict[str, mx.array]) -> None:
        for name in (up, "model.embed_tokens", "model.norm"):
            tensors[f"{name}.weight"] = tensors[f"{name}.weight"].astype(mx.bfloat16)

    folder = rewrite(write_llama(tmp_path / "tiny", config={"mlp_bias": True}), halve)
    weights = weights_of(folder, arithmetic=NativeArithmetic())
    layers = [weights.linear(up, 128, 64, bias=True), weights.linear(gate, 128, 64)]
    tied = [weights.embedding("model.embed_tokens", 288, 64), weights.linear("model.embed_tokens", 288, 64)]
    assert [layer.weight.dtype for layer in layers if isinstance(layer, Linear)] == [mx.bfloat16, mx.float32]
    assert weights.take("model.norm.weight", (64,)).dtype == mx.float32
    assert len(tied) == 2
    assert weights.nbytes == 128 * 64 * (2 + 4) + 128 * 4 + 288 * 64 * 2


@pytest.mark.parametrize("dtype", [mx.int32, mx.uint8])
@pytest.mark.parametrize("arithmetic", [MlxArithmetic, NativeArithmetic])
@pytest.mark.parametrize("name", ["model.layers.0.mlp.up_proj", "model.embed_tokens", "model.norm"])
def test_codes_that_no_scheme_speaks_of_are_refused_by_name(
    tmp_path: Path, name: str, arithmetic: type[Arithmetic], dtype: mx.Dtype
) -> None:
    def recode(tensors: dict[str, mx.array]) -> None:
        tensors[f"{name}.weight"] = mx.ones(tensors[f"{name}.weight"].shape, dtype)

    weights = weights_of(rewrite(write_llama(tmp_path / "tiny"), recode), arithmetic=arithmetic())
    takes: dict[str, Callable[[], object]] = {
        "model.layers.0.mlp.up_proj": lambda: weights.linear(name, 128, 64),
        "model.embed_tokens": lambda: weights.embedding(name, 288, 64),
        "model.norm": lambda: weights.norm(name, 64, 1e-5),
    }
    with pytest.raises(CheckpointRejected) as caught:
        takes[name]()
    assert (caught.value.file, caught.value.key) == ("model.safetensors", f"{name}.weight")


def test_bytes_are_those_of_what_is_kept(tmp_path: Path) -> None:
    weights = weights_of(write_llama(tmp_path / "tiny", quantization=Q4))
    codes, groups = 128 * 8 * 4, 128 * 2 * 4
    weights.linear("model.layers.0.mlp.up_proj", 128, 64)
    assert weights.nbytes == codes + 2 * groups
    weights.embedding("model.embed_tokens", 288, 64)
    weights.linear("model.embed_tokens", 288, 64)
    assert weights.nbytes == codes + 2 * groups + 288 * 8 * 4 + 2 * 288 * 2 * 4


def test_progress_counts_bytes_to_the_end_and_never_back(tmp_path: Path) -> None:
    seen: list[LoadProgress] = []
    folder = write_llama(tmp_path / "tiny", config={"intermediate_size": 32_768, "num_hidden_layers": 4})
    loaded = load(open_checkpoint(folder), NumericPath.FAST, seen.append)
    done = [progress.bytes_done for progress in seen]
    assert len(seen) > 3
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, loaded.weights_bytes)
    assert {progress.bytes_total for progress in seen} == {loaded.weights_bytes}


def test_what_was_read_does_not_stay_beside_what_became_of_it(tmp_path: Path) -> None:
    def halve(tensors: dict[str, mx.array]) -> None:
        tensors.update({name: array.astype(mx.bfloat16) for name, array in tensors.items()})

    folder = rewrite(write_llama(tmp_path / "tiny", config={"intermediate_size": 32_768}), halve)
    checkpoint = open_checkpoint(folder)
    num_stored = sum(info.nbytes for info in checkpoint.tensors.values())
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    loaded = load(checkpoint, NumericPath.REFERENCE, lambda _: None)
    assert loaded.weights_bytes == 2 * num_stored
    assert mx.get_peak_memory() - before < loaded.weights_bytes + num_stored // 2


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    error = refusal(rewrite(write_llama(tmp_path / "tiny"), lambda tensors: tensors.pop(name)))
    assert isinstance(error, CheckpointCorrupt)
    assert (error.file, error.key, error.problem) == ("model.safetensors", name, "is missing")


def test_a_tensor_that_is_left_over_is_named(tmp_path: Path) -> None:
    def add(tensors: dict[str, mx.array]) -> None:
        tensors["model.layers.0.self_attn.q_norm.weight"] = mx.ones(16)
        tensors["model.layers.1.self_attn.q_norm.weight"] = mx.ones(16)

    error = refusal(rewrite(write_llama(tmp_path / "tiny"), add))
    assert isinstance(error, CheckpointRejected)
    assert error.key == "model.layers.0.self_attn.q_norm.weight"
    assert error.problem == "is no part of this model, nor are 1 others"


def test_a_layer_beyond_those_of_the_config_is_left_over(tmp_path: Path) -> None:
    extra = dict(random_tensors({**CONFIG, "num_hidden_layers": 3}))
    error = refusal(rewrite(write_llama(tmp_path / "tiny"), lambda tensors: tensors.update(extra)))
    assert error.key.startswith("model.layers.2.")


def test_tables_that_follow_from_the_config_may_be_there(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    folder = rewrite(write_llama(tmp_path / "tiny"), lambda tensors: tensors.update({name: mx.ones(8)}))
    assert load(open_checkpoint(folder), NumericPath.FAST, lambda _: None).weights_bytes > 0


@pytest.mark.parametrize("quantization", [None, Q4, {**Q4, "lm_head": {"group_size": 64, "bits": 8}}])
def test_a_tied_model_may_hold_its_head_as_well(tmp_path: Path, quantization: dict[str, Any] | None) -> None:
    def copy_head(tensors: dict[str, mx.array]) -> None:
        parts = [name for name in tensors if name.startswith("model.embed_tokens.")]
        tensors.update({name.replace("model.embed_tokens", "lm_head"): tensors[name] for name in parts})

    folder = write_llama(tmp_path / "tiny", config={"tie_word_embeddings": True}, quantization=quantization)
    assert load(open_checkpoint(rewrite(folder, copy_head)), NumericPath.FAST, lambda _: None).weights_bytes > 0


def test_a_tensor_of_another_shape_is_named_with_both(tmp_path: Path) -> None:
    name = "model.layers.0.input_layernorm.weight"
    error = refusal(rewrite(write_llama(tmp_path / "tiny"), lambda tensors: tensors.update({name: mx.ones(63)})))
    assert (error.key, error.problem) == (name, "has shape 63, not 64")


def test_a_biased_config_needs_biases(tmp_path: Path) -> None:
    plain = dict(random_tensors(CONFIG))
    folder = write_llama(tmp_path / "tiny", config={"attention_bias": True})
    write_tensors(folder, plain)
    assert refusal(folder).key == "model.layers.0.self_attn.q_proj.bias"


def test_a_bias_that_the_config_denies_is_left_over(tmp_path: Path) -> None:
    biased = dict(random_tensors({**CONFIG, "mlp_bias": True}))
    folder = write_llama(tmp_path / "tiny")
    write_tensors(folder, biased)
    assert refusal(folder).key == "model.layers.0.mlp.down_proj.bias"


@pytest.mark.parametrize("lost", ["scales", "biases"])
def test_a_packed_weight_without_its_groups_is_refused_by_name(tmp_path: Path, lost: str) -> None:
    module = "model.layers.0.mlp.up_proj"
    folder = write_llama(tmp_path / "tiny", quantization=Q4)
    assert refusal(rewrite(folder, lambda tensors: tensors.pop(f"{module}.{lost}"))).key.startswith(module)


def test_packing_that_the_config_of_the_layer_denies_is_refused_by_name(tmp_path: Path) -> None:
    module = "model.layers.0.mlp.up_proj"
    mixed = {**Q4, module: {"group_size": 32, "bits": 8}}
    weight = mx.random.normal((128, 64))

    def repack(tensors: dict[str, mx.array]) -> None:
        parts = mx.quantize(weight, group_size=32, bits=4)
        tensors.update(dict(zip((f"{module}.weight", f"{module}.scales", f"{module}.biases"), parts, strict=True)))

    error = refusal(rewrite(write_llama(tmp_path / "tiny", quantization=mixed), repack))
    assert (error.key, error.problem) == (f"{module}.weight", "is packed as affine 4-bit g32, not affine 8-bit g32")


def test_packing_is_read_from_the_shapes_where_the_default_is_wrong(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "tiny", quantization=Q4)
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"bits": 4', '"bits": 8'))
    assert load(open_checkpoint(folder), NumericPath.FAST, lambda _: None).weights_bytes > 0


def test_an_override_for_a_layer_that_the_model_lacks_is_refused(tmp_path: Path) -> None:
    error = refusal(write_llama(tmp_path / "tiny", quantization={**Q4, "model.layers.9.mlp.up_proj": False}))
    assert error.key == "quantization.model.layers.9.mlp.up_proj"


def test_a_file_that_shrank_after_its_header_was_checked_is_named(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "tiny")
    checkpoint = open_checkpoint(folder)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-4096])
    with pytest.raises(CheckpointCorrupt) as caught:
        load(checkpoint, NumericPath.FAST, lambda _: None)
    assert (caught.value.file, caught.value.problem) == ("model.safetensors", "has data that lies outside the file")


def test_a_file_that_fails_while_it_is_read_is_named_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = weights_of(write_llama(tmp_path / "tiny", num_shards=2))
    weights.norm("model.norm", 64, 1e-5)

    def fail(*_arrays: object) -> None:
        raise RuntimeError("[read] Unable to read 4096 bytes")

    monkeypatch.setattr(mx, "eval", fail)
    with pytest.raises(CheckpointCorrupt) as caught:
        weights.materialize(lambda _done, _total: None)
    assert (caught.value.file, caught.value.problem) == ("model.safetensors.index.json", "cannot be read")
    assert weights.nbytes == 0


def test_a_file_that_is_gone_after_its_header_was_checked_is_named(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "tiny")
    checkpoint = open_checkpoint(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointMissing, match=r"^model\.safetensors: is not there$"):
        load(checkpoint, NumericPath.FAST, lambda _: None)


def test_a_gguf_file_is_loaded_without_mlx_opening_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_llama_gguf(tmp_path / "tiny.gguf")
    monkeypatch.delattr(mx, "load")
    reports: list[LoadProgress] = []
    loaded = load(open_checkpoint(file), NumericPath.FAST, reports.append)
    reading = [progress for progress in reports if progress.phase == "reading"]
    assert loaded.weights_bytes > 0
    assert len(reading) > 1
    assert reading[-1].bytes_done == reading[-1].bytes_total
