"""A model whose experts are held in any way computes the same numbers, and says how it holds them."""

import json
import logging
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from models.checkpoint.checkpoint import open_checkpoint
from models.checkpoint.errors import CheckpointCorrupt, CheckpointMissing, CheckpointRejected
from models.checkpoint.fit import TextSizes
from models.checkpoint.kv_scheme import KVScheme
from models.checkpoint.routed_experts import routed_experts
from models.checkpoint.sizes import Computation
from models.errors import SlotsTooFew
from models.experts.holding import Holding
from models.experts.mapped import can_map
from models.experts.options import ExpertsMode, ExpertsOptions
from models.experts.pack import PACK_FILE
from models.layers.device import device_name
from models.registry import LoadedModel
from models.step import NumericPath
from native import kernels
from tests.models.experts.holding import MIXTURES, MODES, loaded_with, write_mixture
from tests.models.stepping import greedy
from tests.support.tiny_models import write_llama, write_tensors

RESIDENT, MAPPED, SLAB = MODES
PROMPT = tuple(range(3, 40))
needs_mapping = pytest.mark.skipif(not can_map(), reason="this install maps no files")


def answers(loaded: LoadedModel, num_tokens: int = 6) -> list[np.ndarray]:
    """Return the logits behind the prompt and behind each token of an answer."""
    return [np.array(logits.astype(mx.float32)) for _, logits in greedy(loaded, PROMPT, num_tokens)]


@needs_mapping
@pytest.mark.parametrize("path", list(NumericPath))
@pytest.mark.parametrize("cpu_kernels", [True, False])
@pytest.mark.parametrize("name", MIXTURES)
def test_every_mode_computes_the_same_numbers(tmp_path: Path, name: str, path: NumericPath, cpu_kernels: bool) -> None:
    folder = write_mixture(tmp_path / "model", name)
    found: list[list[np.ndarray]] = []
    for mode in MODES:
        with loaded_with(folder, ExpertsOptions(mode), path, cpu_kernels=cpu_kernels) as loaded:
            found.append(answers(loaded))
    for other in found[1:]:
        assert all(np.array_equal(mine, theirs) for mine, theirs in zip(found[0], other, strict=True))


@needs_mapping
def test_it_is_said_how_experts_are_held(tmp_path: Path) -> None:
    folder = write_mixture(tmp_path / "model")
    stored = routed_experts(open_checkpoint(folder))
    assert stored is not None
    held = {}
    for mode in MODES:
        with loaded_with(folder, ExpertsOptions(mode)) as loaded:
            assert loaded.experts is not None
            held[mode] = (loaded.experts, loaded.weights_bytes)
    assert [(each.mode, each.total_bytes) for each, _ in held.values()] == [
        (mode, stored.stored_bytes) for mode in MODES
    ]
    assert [each.mapped_bytes for each, _ in held.values()] == [0, stored.stored_bytes, 0]
    assert [each.resident_bytes for each, _ in held.values()] == [stored.stored_bytes, 0, 0]
    weights = [num_bytes for _, num_bytes in held.values()]
    assert weights[0] - weights[1] == stored.stored_bytes
    assert weights[2] == weights[1]


def test_headers_tell_of_experts(tmp_path: Path) -> None:
    folder = write_mixture(tmp_path / "model", "qwen3_moe some dense", is_packed=False)
    found = routed_experts(open_checkpoint(folder))
    assert found is not None
    assert (found.num_layers, found.num_experts, found.num_chosen) == (1, 8, 3)


def test_a_dense_model_holds_no_experts_whatever_is_asked_for(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_llama(tmp_path / "model"))
    assert routed_experts(checkpoint) is None
    holding = Holding.of(checkpoint, ExpertsOptions(MAPPED, trace_file=tmp_path / "trace"))
    assert (holding.held(0, 0), holding.checkpoint, (tmp_path / "trace").exists()) == (None, checkpoint, False)


@needs_mapping
def test_mapping_needs_a_pack(tmp_path: Path) -> None:
    folder = write_mixture(tmp_path / "model", is_packed=False)
    with (
        pytest.raises(CheckpointMissing, match=r"experts\.pack.*pomona pack-experts"),
        loaded_with(folder, ExpertsOptions(MAPPED)),
    ):
        pass


def test_a_pack_of_no_use_stops_mapping_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_mixture(tmp_path / "model")
    pack = folder / PACK_FILE
    pack.write_bytes(pack.read_bytes()[:-1])
    with pytest.raises(CheckpointCorrupt, match="is truncated"):
        Holding.of(open_checkpoint(folder), ExpertsOptions(MAPPED))
    with caplog.at_level(logging.WARNING):
        holding = Holding.of(open_checkpoint(folder), ExpertsOptions(SLAB))
    assert PACK_FILE not in {info.file.name for info in holding.checkpoint.tensors.values()}
    assert "their pack is of no use" in caplog.text


@pytest.mark.parametrize("mode", MODES)
def test_routing_is_written_down_and_changes_nothing(tmp_path: Path, mode: ExpertsMode) -> None:
    folder, trace = write_mixture(tmp_path / "model"), tmp_path / "trace.jsonl"
    with loaded_with(folder, ExpertsOptions()) as loaded:
        expected = answers(loaded, 3)
    with loaded_with(folder, ExpertsOptions(mode, trace_file=trace)) as loaded:
        found = answers(loaded, 3)
    assert all(np.array_equal(mine, theirs) for mine, theirs in zip(expected, found, strict=True))
    _, *records = [json.loads(line) for line in trace.read_text().splitlines()]
    assert {record["l"] for record in records} == {0, 1}
    assert sum(record["s"][1] for record in records) == 2 * (len(PROMPT) + 3)


@pytest.mark.parametrize("path", list(NumericPath))
@pytest.mark.parametrize("name", MIXTURES)
def test_headers_tell_the_fewest_bytes_that_slabs_need(tmp_path: Path, name: str, path: NumericPath) -> None:
    checkpoint = open_checkpoint(write_mixture(tmp_path / "model", name, is_packed=False))
    has_kernels, is_reference = kernels.is_available(), path is NumericPath.REFERENCE
    computation = Computation.of(checkpoint, device_name(), has_kernels=has_kernels, is_reference=is_reference)
    needs = TextSizes(checkpoint, computation, KVScheme()).experts
    assert needs is not None
    assert needs.slabs is not None
    for budget in (needs.slabs.least, needs.slabs.most):
        with loaded_with(tmp_path / "model", ExpertsOptions(SLAB, budget), path) as loaded:
            assert loaded.experts is not None
            assert 0.95 * budget < loaded.experts.slab_bytes <= budget


def test_a_budget_for_too_few_is_refused(tmp_path: Path) -> None:
    folder = write_mixture(tmp_path / "model", is_packed=False)
    with pytest.raises(SlotsTooFew), loaded_with(folder, ExpertsOptions(SLAB, 4 << 20)):
        pass


def test_experts_that_slabs_cannot_hold_are_not_kept_in_memory_instead(tmp_path: Path) -> None:
    folder = write_mixture(tmp_path / "model", is_packed=False)
    tensors = mx.load(str(folder / "model.safetensors"))
    assert isinstance(tensors, dict)
    name = "model.layers.0.mlp.switch_mlp.up_proj.biases"
    write_tensors(folder, {**tensors, name: tensors[name].astype(mx.float16)})
    with pytest.raises(CheckpointRejected, match="which slabs cannot hold"), loaded_with(folder, ExpertsOptions(SLAB)):
        pass
    with loaded_with(folder, ExpertsOptions()) as loaded:
        answers(loaded, 1)
