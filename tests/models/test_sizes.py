"""Sizes told from headers are those of models that are really loaded, and of what their caches then hold."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import pytest

from models.blocks import BLOCK_TOKENS, blocks_for
from models.checkpoint.checkpoint import TextCheckpoint, open_checkpoint
from models.checkpoint.kv_scheme import KVScheme
from models.checkpoint.kv_sizes import KVSizes, kv_layers
from models.checkpoint.sizes import Computation, text_weight_sizes, weight_sizes
from models.layers.stores.buffers import GROWTH_TOKENS
from models.registry import LoadedModel, load
from models.step import NumericPath
from models.whisper.computation import whisper_computation
from models.whisper.fit import whisper_fit
from models.whisper.folder import open_whisper
from models.whisper.loading import load_whisper
from models.whisper.session import Session
from models.whisper.state import Texts
from native import kernels
from tests.models.families import FAMILIES, KEY_VALUE
from tests.models.stepping import step_logits
from tests.models.variants import VARIANTS, WINDOWED
from tests.support.smollm2 import smollm2_path
from tests.support.tiny_families import Tiny, write_family
from tests.support.tiny_models import write_llama, write_tensors
from tests.support.tiny_whisper import write_ctranslate2, write_hugging_face, write_mlx

needs_kernels = pytest.mark.skipif(not kernels.is_available(), reason="built without the native extension")
LLAMAS = {**VARIANTS, **WINDOWED}
WIDE_WINDOWS = {
    "llama": ("llama", {"head_dim": 64, "sliding_window": 24, "layer_types": ["full_attention", "sliding_attention"]}),
    "gemma3": ("gemma3_text", {"head_dim": 64}),
    "gemma4": ("gemma4_text", {"head_dim": 64}),
    "gemma4 values from keys": ("gemma4_text", {**KEY_VALUE, "head_dim": 64}),
}


def opened(folder: Path, name: str) -> TextCheckpoint:
    written = write_family(folder, FAMILIES[name]) if name in FAMILIES else write_llama(folder, **LLAMAS[name])
    return open_checkpoint(written)


def halved(folder: Path, dtype: mx.Dtype) -> Path:
    """Store every floating tensor of a checkpoint in another dtype."""
    tensors = cast("dict[str, mx.array]", mx.load(str(folder / "model.safetensors")))
    floats = {name: array.astype(dtype) for name, array in tensors.items() if mx.issubdtype(array.dtype, mx.floating)}
    mx.eval(tensors | floats)
    write_tensors(folder, tensors | floats)
    return folder


def loaded_from(checkpoint: TextCheckpoint, *, cpu_kernels: bool, scheme: str = "none") -> LoadedModel:
    kept = KVScheme.from_text(scheme)
    return load(checkpoint, NumericPath.FAST, lambda _: None, cpu_kernels=cpu_kernels, kv_scheme=kept)


def told_weights(checkpoint: TextCheckpoint, loaded: LoadedModel) -> int:
    computation = Computation.of(checkpoint, "cpu", has_kernels=loaded.arithmetic.name == "native")
    assert computation.dtype_word == loaded.compute_dtype
    sizes = text_weight_sizes(checkpoint, computation)
    return sizes.resident_bytes + sizes.experts_bytes


@pytest.mark.parametrize("cpu_kernels", [pytest.param(True, marks=needs_kernels), False])
@pytest.mark.parametrize("name", [*FAMILIES, *LLAMAS])
def test_weights_and_layers_are_those_of_the_loaded_model(tmp_path: Path, name: str, cpu_kernels: bool) -> None:
    checkpoint = opened(tmp_path / "tiny", name)
    loaded = loaded_from(checkpoint, cpu_kernels=cpu_kernels)
    assert told_weights(checkpoint, loaded) == loaded.weights_bytes
    assert KVSizes(kv_layers(checkpoint.text), KVScheme(), 4).layers == loaded.kv_sizes.layers


@pytest.mark.parametrize("cpu_kernels", [pytest.param(True, marks=needs_kernels), False])
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
@pytest.mark.parametrize(
    "name", ["qwen2 untied", "qwen3 4-bit", "gemma3 mixed", "gemma4 edge 4-bit", "mistral wrapped"]
)
def test_half_precision_becomes_what_the_arithmetic_reads(
    tmp_path: Path, name: str, dtype: mx.Dtype, cpu_kernels: bool
) -> None:
    opened(tmp_path / "tiny", name)
    checkpoint = open_checkpoint(halved(tmp_path / "tiny", dtype))
    loaded = loaded_from(checkpoint, cpu_kernels=cpu_kernels)
    assert told_weights(checkpoint, loaded) == loaded.weights_bytes


def test_keys_that_published_files_hold_of_sharing_layers_are_not_counted(tmp_path: Path) -> None:
    unread = {
        f"model.layers.{layer}.self_attn.{name}.weight": (4, 4) for layer in (2, 3) for name in ("k_proj", "v_proj")
    }
    unread |= {f"model.layers.{layer}.self_attn.k_norm.weight": (4,) for layer in (2, 3)}
    edge = FAMILIES["gemma4 edge"]
    checkpoint = open_checkpoint(write_family(tmp_path, Tiny(edge.model_type, edge.config, extra=unread)))
    loaded = loaded_from(checkpoint, cpu_kernels=True)
    assert told_weights(checkpoint, loaded) == loaded.weights_bytes


def test_a_head_that_is_stored_beside_a_tied_embedding_is_not_counted(tmp_path: Path) -> None:
    tied = Tiny("qwen3", {"tie_word_embeddings": True}, extra={"lm_head.weight": (288, 64)})
    checkpoint = open_checkpoint(write_family(tmp_path, tied))
    assert "lm_head.weight" in checkpoint.tensors
    assert told_weights(checkpoint, loaded := loaded_from(checkpoint, cpu_kernels=True)) == loaded.weights_bytes


@needs_kernels
def test_smollm2_takes_what_its_headers_say() -> None:
    checkpoint = open_checkpoint(smollm2_path())
    assert told_weights(checkpoint, loaded_from(checkpoint, cpu_kernels=True)) == 98_346_240


@pytest.mark.parametrize(
    ("dtype", "word", "num_bytes"), [("F16", "float16", 2), ("BF16", "bfloat16", 2), ("F32", "float32", 4)]
)
def test_a_gpu_computes_in_the_dtype_of_the_embedding(tmp_path: Path, dtype: str, word: str, num_bytes: int) -> None:
    folder = write_llama(tmp_path)
    stored = {"F16": mx.float16, "BF16": mx.bfloat16, "F32": mx.float32}[dtype]
    checkpoint = open_checkpoint(halved(folder, stored))
    computation = Computation.of(checkpoint, "metal", has_kernels=True)
    assert (computation.dtype_word, computation.item_bytes, computation.has_kernels) == (word, num_bytes, False)
    stored_bytes = sum(info.nbytes for info in checkpoint.tensors.values())
    assert text_weight_sizes(checkpoint, computation).resident_bytes == stored_bytes


def test_routed_experts_are_told_apart(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_llama(tmp_path))
    experts = dict.fromkeys(
        (
            "model.layers.0.mlp.switch_mlp.up_proj.weight",
            "model.layers.0.experts.switch_glu.up_proj.weight",
            "model.layers.0.mlp.experts.7.up_proj.weight",
            "model.layers.0.mlp.experts.gate_up_proj",
        ),
        checkpoint.tensors["model.norm.weight"],
    )
    mixture: Any = type("Mixture", (), {"tensors": {**checkpoint.tensors, **experts}})()
    sizes = weight_sizes(mixture, Computation("cpu", False, False, "F32"))
    assert (sizes.experts_bytes, sizes.resident_bytes) == (
        4 * 64 * 4,
        loaded_from(checkpoint, cpu_kernels=False).weights_bytes,
    )


def slack(sizes: KVSizes) -> int:
    """Return what blocks hold beside tokens: the rest of one in a full layer, of two at the ends of a window."""
    return BLOCK_TOKENS * (sizes.growth_bytes + 2 * sizes.window_bytes)


@needs_kernels
@pytest.mark.parametrize(
    "name", ["qwen3 untied", "gemma3", "gemma4", "gemma4 edge", "gemma4 values from keys", "window"]
)
def test_a_paged_cache_holds_what_a_sequence_is_said_to_take(tmp_path: Path, name: str) -> None:
    loaded = loaded_from(opened(tmp_path / "tiny", name), cpu_kernels=True)
    cache, sizes = loaded.make_cache(1), loaded.kv_sizes
    for num_tokens in (20, 40, 30, 1, 1, 68):
        step_logits(loaded, cache, (1,) * num_tokens)
        length = cache.length(0)
        assert sizes.sequence_bytes(length) <= cache.nbytes <= sizes.sequence_bytes(length) + slack(sizes), length
    assert sizes.sequence_bytes(160) == 160 * sizes.growth_bytes + 24 * sizes.window_bytes


@pytest.mark.parametrize("scheme", ["none", "8", "4:g32", "8:s64", "turbo", "turbo:k4v2:s32"])
@pytest.mark.parametrize("name", WIDE_WINDOWS)
def test_rows_of_their_own_hold_what_a_sequence_is_said_to_take(tmp_path: Path, name: str, scheme: str) -> None:
    family, config = WIDE_WINDOWS[name]
    folder = write_llama(tmp_path, config=config) if family == "llama" else write_family(tmp_path, Tiny(family, config))
    loaded = loaded_from(open_checkpoint(folder), cpu_kernels=False, scheme=scheme)
    cache, sizes = loaded.make_cache(1), loaded.kv_sizes
    step_logits(loaded, cache, (1,) * 100)
    # Arrays grow by whole steps, those of windows too; what is packed has an array of its own for what is not.
    grown = 2 * GROWTH_TOKENS * len(sizes.layers) * sizes.largest_layer_bytes
    assert sizes.sequence_bytes(100) <= cache.nbytes <= sizes.sequence_bytes(100) + grown
    assert KVSizes(kv_layers(loaded.text_checkpoint.text), loaded.kv_scheme, 4).sequence_bytes(
        100
    ) == sizes.sequence_bytes(100)


@needs_kernels
def test_rows_together_take_no_more_than_they_are_said_to(tmp_path: Path) -> None:
    loaded = loaded_from(opened(tmp_path / "tiny", "gemma3"), cpu_kernels=True)
    cache, sizes = loaded.make_cache(3), loaded.kv_sizes
    for slot, num_tokens in enumerate((10, 100, 40)):
        step_logits(loaded, cache, (1,) * num_tokens, slot=slot)
    assert cache.nbytes <= sizes.rows_bytes(150, 3) + 3 * slack(sizes)
    assert sizes.rows_bytes(150, 3) == 150 * sizes.growth_bytes + 3 * 24 * sizes.window_bytes


@needs_kernels
def test_a_pool_of_windows_has_no_more_blocks_than_its_rows_can_hold(tmp_path: Path) -> None:
    loaded = loaded_from(opened(tmp_path / "tiny", "gemma3"), cpu_kernels=True)
    cache: Any = loaded.make_cache(2, 1 << 20)
    rows = {group.layer.window: group.num_row_blocks for group in cache.groups}
    assert rows[None] == blocks_for(1 << 20) + 2
    assert rows[24] == 2 * (blocks_for(24 + 2048) + 1)
    assert all(cache.reserve(slot, 1 << 19) for slot in range(2))


@pytest.mark.parametrize("cpu_kernels", [pytest.param(True, marks=needs_kernels), False])
@pytest.mark.parametrize(
    "kind", ["mlx float16", "mlx 4-bit", "hugging face", "hugging face float16", "ctranslate2", "ctranslate2 float16"]
)
def test_whisper_takes_what_its_headers_say(tmp_path: Path, kind: str, cpu_kernels: bool) -> None:
    layout, _, word = kind.rpartition(" ") if kind.endswith(("16", "bit")) else (kind, "", "float32")
    dtype = mx.float16 if word == "float16" else mx.float32
    if layout == "ctranslate2":
        write_ctranslate2(tmp_path, dtype=word)
    elif layout == "hugging face":
        write_hugging_face(tmp_path, dtype=dtype)
    else:
        write_mlx(tmp_path, dtype=dtype, quantization={"group_size": 32, "bits": 4} if word == "4-bit" else None)
    checkpoint = open_whisper(tmp_path)
    loaded = load_whisper(checkpoint, NumericPath.FAST, lambda *_: None, cpu_kernels=cpu_kernels)
    computation = whisper_computation(checkpoint, "cpu", has_kernels=loaded.kernels == "native")
    fit = whisper_fit(checkpoint, computation, num_rows=3)
    positions = loaded.model.config.n_audio_ctx * loaded.model.config.n_audio_state * 4  # which are computed
    assert fit.weights_bytes == loaded.weights_bytes + positions
    assert fit.kv_bytes == 3 * fit.kv_row_bytes


def test_packed_whisper_is_computed_on_a_gpu_in_the_dtype_of_what_is_never_packed(tmp_path: Path) -> None:
    stored = open_whisper(write_ctranslate2(tmp_path, dtype="int8"))
    norm = "decoder.ln.weight"
    halved = {**stored.tensors, norm: replace(stored.tensors[norm], dtype="F16")}
    for checkpoint, dtype in ((stored, "F32"), (replace(stored, tensors=halved), "F16")):
        assert whisper_computation(checkpoint, "metal", has_kernels=False).dtype == dtype


@needs_kernels
def test_a_window_of_whisper_holds_what_it_is_said_to_take(tmp_path: Path) -> None:
    checkpoint = open_whisper(write_mlx(tmp_path, sizes={"n_text_ctx": 64}, dtype=mx.float16))
    model = load_whisper(checkpoint, NumericPath.FAST, lambda *_: None).model
    memory = Session(model, is_reference=False).hear([mx.zeros((model.config.num_frames, model.config.n_mels))])[0]
    texts, written = Texts(memory), mx.zeros((1, model.config.n_text_ctx, model.config.n_text_state))
    for layer in range(model.config.n_text_layer):
        texts.extend(layer, written, written)
    held = [*(array for pair in memory for array in pair), *texts.arrays()]
    computation = whisper_computation(checkpoint, "cpu", has_kernels=True)
    assert sum(array.nbytes for array in held) == whisper_fit(checkpoint, computation, num_rows=1).kv_row_bytes
