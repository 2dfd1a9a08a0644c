"""What a text model takes, part by part, as a function of how it is run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from models.checkpoint.checkpoint import TextCheckpoint, open_checkpoint
from models.checkpoint.fit import PROCESS_BYTES, TOKEN_BYTES, Run, TextSizes, largest_context
from models.checkpoint.kv_scheme import KVScheme
from models.checkpoint.kv_sizes import KVLayer, KVSizes
from models.checkpoint.sizes import Computation
from tests.models.families import FAMILIES
from tests.models.variants import VARIANTS, WINDOWED
from tests.support.tiny_families import write_family
from tests.support.tiny_models import write_llama

NATIVE = Computation("cpu", has_kernels=True, is_reference=False, dtype="F32")
MLX = Computation("cpu", has_kernels=False, is_reference=False, dtype="F32")
REFERENCE = Computation("cpu", has_kernels=False, is_reference=True, dtype="F32")
METAL = Computation("metal", has_kernels=False, is_reference=False, dtype="F16")
RUN = Run(context_tokens=4096, num_rows=4, num_logits=4, kv_tokens=4 * 4096, chunk_tokens=512, prefix_bytes=7)
VOCAB, HEADS = 288, 4


def opened(folder: Path, **options: Any) -> TextCheckpoint:
    return open_checkpoint(write_llama(folder, **options))


def step(checkpoint: TextCheckpoint, computation: Computation, run: Run = RUN, scheme: str = "none") -> int:
    return TextSizes(checkpoint, computation, KVScheme.from_text(scheme)).fit(run).transient_bytes


def test_the_process_grows_with_its_tokenizer(tmp_path: Path) -> None:
    fit = TextSizes(opened(tmp_path), NATIVE, KVScheme()).fit(RUN)
    assert fit.process_bytes == PROCESS_BYTES + TOKEN_BYTES * VOCAB
    assert fit.prefix_bytes == 7
    parts = fit.weights_bytes + fit.kv_bytes + fit.prefix_bytes + fit.transient_bytes + fit.process_bytes
    assert fit.total_bytes == parts


def test_a_step_grows_with_its_chunk_and_not_beyond_the_context(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path)
    small, large = (step(checkpoint, NATIVE, replace(RUN, chunk_tokens=count)) for count in (256, 512))
    # Residual, its sum, and the feed-forward part's three.
    assert large - small == 256 * 4 * (2 * 64 + 3 * 128)
    assert step(checkpoint, NATIVE, replace(RUN, context_tokens=256)) == small


def test_rows_count_where_they_are_more_than_a_chunk(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path)
    many = replace(RUN, num_rows=600)
    assert step(checkpoint, NATIVE, many) == step(checkpoint, NATIVE, replace(RUN, chunk_tokens=600))


def test_logits_of_all_rows_count(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path)
    for computation, copies in ((NATIVE, 2), (MLX, 8)):
        few, many = (step(checkpoint, computation, replace(RUN, num_logits=count)) for count in (0, 10))
        assert many - few == copies * 10 * VOCAB * 4


def test_scores_count_where_no_kernel_avoids_them(tmp_path: Path) -> None:
    checkpoint, longer = opened(tmp_path), replace(RUN, context_tokens=8192)
    grown = {name: step(checkpoint, each, longer) - step(checkpoint, each) for name, each in COMPUTATIONS.items()}
    assert grown["native"] == 0
    assert grown["mlx"] == 2 * HEADS * 64 * 4096 * 4
    assert grown["reference"] == 2 * HEADS * 512 * 4096 * 4
    assert grown["metal, narrow heads"] == HEADS * 512 * 4096 * 2


def test_metals_kernel_takes_heads_of_its_widths(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path, config={"head_dim": 64})
    assert step(checkpoint, METAL, replace(RUN, context_tokens=8192)) == step(checkpoint, METAL)


def test_packed_keys_and_values_are_unpacked_a_layer_at_a_time(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path, config={"head_dim": 64})
    layer = 2 * 2 * 64 * 4  # keys and values of two heads
    assert step(checkpoint, NATIVE, scheme="8") - step(checkpoint, NATIVE) == 2 * 4096 * layer


def test_windows_hold_the_chunk_that_is_read_besides(tmp_path: Path) -> None:
    plain = opened(tmp_path / "plain")
    windowed = opened(tmp_path / "window", **WINDOWED["window"])
    assert step(windowed, NATIVE) - step(plain, NATIVE) == 512 * 2 * 2 * 16 * 4


def test_packed_weights_are_expanded_where_mlx_multiplies_on_the_cpu(tmp_path: Path) -> None:
    packed, plain = opened(tmp_path / "packed", **VARIANTS["4-bit"]), opened(tmp_path / "plain")
    assert step(packed, MLX) - step(plain, MLX) == VOCAB * 64 * 4  # the largest is the embedding
    for computation in (NATIVE, REFERENCE, METAL):
        assert step(packed, computation) == step(plain, computation)


def test_embeddings_of_layers_own_count_for_all_layers(tmp_path: Path) -> None:
    edge = open_checkpoint(write_family(tmp_path, FAMILIES["gemma4 edge"]))
    without = replace(edge, text=replace(edge.text, hidden_size_per_layer_input=0))
    assert step(edge, NATIVE) - step(without, NATIVE) == 512 * 4 * 2 * 4 * 32


def test_keys_and_values_of_rows_are_bounded_by_windows_and_begin_unpacked() -> None:
    layers = (KVLayer(2, 64), KVLayer(1, 32, 100))
    plain = KVSizes(layers, KVScheme(), 2)
    assert (plain.token_bytes, plain.growth_bytes, plain.window_bytes) == (2 * 256 + 128, 2 * 256, 128)
    assert [plain.sequence_bytes(count) for count in (0, 50, 100, 250)] == [
        0,
        50 * 640,
        100 * 640,
        250 * 512 + 100 * 128,
    ]
    assert plain.rows_bytes(1000, 3) == 1000 * 512 + 300 * 128
    packed = KVSizes(layers, KVScheme.from_text("8:s64"), 2)
    token = 2 * 2 * (64 + 2 * 2)  # codes, and a scale and a bias of each
    assert packed.growth_bytes == token
    assert packed.rows_bytes(1000, 3) == 1000 * token + 192 * (512 - token) + 300 * 128
    assert packed.largest_layer_bytes == 512


def test_a_model_without_layers_holds_nothing() -> None:
    assert KVSizes((), KVScheme(), 4).largest_layer_bytes == 0


@pytest.mark.parametrize(("budget", "most"), [(99, 0), (100, 1), (149, 5), (150, 6), (10**9, 1000)])
def test_the_largest_context_is_found(budget: int, most: int) -> None:
    assert largest_context(lambda count: 90 + 10 * count, 1000, budget) == most


COMPUTATIONS = {"native": NATIVE, "mlx": MLX, "reference": REFERENCE, "metal, narrow heads": METAL}
