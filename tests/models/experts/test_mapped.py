"""Models whose experts stay in their pack: the same numbers, no memory, and ends that are told."""

import gc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
import numpy as np
import pytest

import native
from models import registry
from models.checkpoint.checkpoint import open_checkpoint
from models.checkpoint.errors import CheckpointCorrupt, CheckpointMissing
from models.experts import mapped
from models.experts.errors import MappingUnavailable
from models.experts.mapped import MappedExperts
from models.experts.options import ExpertsMode, ExpertsOptions
from models.experts.pack import PACK_FILE, find_pack
from models.experts.pack_builder import build_pack, plan_pack
from models.registry import LoadedModel
from models.step import NumericPath
from tests.models.families import FAMILIES
from tests.models.stepping import greedy
from tests.support.tiny_families import write_family

from .folders import checkpoint_of, ignore_phase, packed, stacked, write_experts

NUM_TOKENS, MANY_TOKENS = 24, 200
PROMPT = tuple(range(3, 40))
NAME = "model.layers.1.mlp.switch_mlp.up_proj.weight"


def write_packed(folder: Path, kind: str) -> Path:
    """Write a tiny model and its pack."""
    write_family(folder, FAMILIES[kind])
    build_pack(plan_pack(folder, open_checkpoint(folder).tensors), ignore_phase)
    return folder


def load(folder: Path, mode: ExpertsMode, path: NumericPath = NumericPath.FAST) -> LoadedModel:
    return registry.load(open_checkpoint(folder), path, lambda _: None, experts=ExpertsOptions(mode))


def answers(
    loaded: LoadedModel, prompt: Sequence[int] = PROMPT, num_tokens: int = NUM_TOKENS
) -> tuple[list[int], np.ndarray[Any, Any]]:
    """Return tokens and their logits."""
    chosen = list(greedy(loaded, prompt, num_tokens))
    return [token for token, _ in chosen], np.stack([np.array(logits.astype(mx.float32)) for _, logits in chosen])


def mappings_of(path: Path) -> int:
    """Count the mappings of a file in this process (Linux only)."""
    return Path("/proc/self/maps").read_text().count(str(path))


@pytest.mark.parametrize("path", list(NumericPath))
@pytest.mark.parametrize("kind", ["qwen3_moe", "qwen3_moe 4-bit", "qwen3_moe mixed", "qwen3_moe mxfp4"])
def test_a_mapped_model_computes_what_a_resident_one_does(tmp_path: Path, kind: str, path: NumericPath) -> None:
    folder = write_packed(tmp_path / "tiny", kind)
    tokens, logits = answers(load(folder, ExpertsMode.RESIDENT, path))
    mapped_tokens, mapped_logits = answers(load(folder, ExpertsMode.MAPPED, path))
    assert mapped_tokens == tokens
    assert np.array_equal(mapped_logits, logits)


def test_and_does_over_many_tokens_behind_a_random_prompt(tmp_path: Path) -> None:
    folder = write_packed(tmp_path / "tiny", "qwen3_moe 4-bit")
    prompt = [int(token) for token in np.random.default_rng(8).integers(3, 200, 150)]
    expected = answers(load(folder, ExpertsMode.RESIDENT), prompt, MANY_TOKENS)
    found = answers(load(folder, ExpertsMode.MAPPED), prompt, MANY_TOKENS)
    assert found[0] == expected[0]
    assert np.array_equal(found[1], expected[1])


@pytest.mark.parametrize("layout", ["fused", "each"])
@pytest.mark.parametrize("family", ["qwen3_moe", "gemma4 experts fused"])
def test_layouts_that_cannot_be_mapped_as_stored_are_mapped_from_their_pack(
    tmp_path: Path, family: str, layout: Literal["fused", "each"]
) -> None:
    folder = write_family(tmp_path / "tiny", replace(FAMILIES[family], layout=layout))
    build_pack(plan_pack(folder, open_checkpoint(folder).tensors), ignore_phase)
    resident, loaded = load(folder, ExpertsMode.RESIDENT), load(folder, ExpertsMode.MAPPED)
    assert loaded.experts is not None
    assert loaded.experts.mapped_bytes == loaded.experts.total_bytes > 0
    assert answers(loaded)[0] == answers(resident)[0]
    assert np.array_equal(answers(loaded)[1], answers(resident)[1])


def test_codes_take_no_memory(tmp_path: Path) -> None:
    folder = write_packed(tmp_path / "tiny", "qwen3_moe 4-bit")
    resident, loaded = load(folder, ExpertsMode.RESIDENT), load(folder, ExpertsMode.MAPPED)
    assert loaded.experts is not None
    pack = find_pack(open_checkpoint(folder))
    assert pack is not None
    codes = sum(entry.nbytes for entry in pack.entries.values() if entry.dtype == "U32")
    assert codes <= loaded.experts.mapped_bytes <= pack.nbytes
    assert resident.weights_bytes == loaded.weights_bytes + loaded.experts.mapped_bytes


@pytest.mark.skipif(mx.metal.is_available() or mx.cuda.is_available(), reason="there, half floats are as stored")
def test_what_the_arithmetic_converts_is_in_memory(tmp_path: Path) -> None:
    folder = write_halves(tmp_path / "tiny", "qwen3_moe 4-bit")
    build_pack(plan_pack(folder, open_checkpoint(folder).tensors), ignore_phase)
    resident, loaded = (
        load(folder, mode, NumericPath.REFERENCE) for mode in (ExpertsMode.RESIDENT, ExpertsMode.MAPPED)
    )
    pack = find_pack(open_checkpoint(folder))
    assert pack is not None
    assert loaded.experts is not None
    assert loaded.experts.mapped_bytes == sum(each.nbytes for each in pack.entries.values() if each.dtype == "U32")
    assert np.array_equal(answers(loaded)[1], answers(resident)[1])


def write_halves(folder: Path, kind: str) -> Path:
    """Write a tiny model whose floats are stored in 16 bits."""
    path = write_family(folder, FAMILIES[kind]) / "model.safetensors"
    arrays: Any = mx.load(str(path))
    halves = {name: array.astype(mx.bfloat16) if array.dtype == mx.float32 else array for name, array in arrays.items()}
    mx.eval(halves)
    mx.save_safetensors(str(path), halves)
    return folder


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no list of mappings here")
def test_mappings_go_with_the_model(tmp_path: Path) -> None:
    folder = write_packed(tmp_path / "tiny", "qwen3_moe 4-bit")
    loaded = load(folder, ExpertsMode.MAPPED)
    assert mappings_of(folder / PACK_FILE) > 0
    del loaded
    gc.collect()
    assert mappings_of(folder / PACK_FILE) == 0


def test_two_models_have_their_own_packs(tmp_path: Path) -> None:
    first, second = (write_packed(tmp_path / name, "qwen3_moe 4-bit") for name in ("first", "second"))
    expected = answers(load(second, ExpertsMode.RESIDENT))[1]
    loaded = load(first, ExpertsMode.MAPPED), load(second, ExpertsMode.MAPPED)
    assert np.array_equal(answers(loaded[1])[1], expected)


def test_a_pack_that_is_written_anew_leaves_a_loaded_model_as_it_is(tmp_path: Path) -> None:
    folder = write_packed(tmp_path / "tiny", "qwen3_moe 4-bit")
    loaded = load(folder, ExpertsMode.MAPPED)
    tokens, logits = answers(loaded)
    build_pack(plan_pack(folder, open_checkpoint(folder).tensors), ignore_phase, force=True)
    assert answers(loaded)[0] == tokens
    assert np.array_equal(answers(loaded)[1], logits)


def test_what_the_pack_lacks_is_read(tmp_path: Path) -> None:
    folder = write_experts(tmp_path / "tiny")
    checkpoint, pack = checkpoint_of(folder), packed(folder)
    arrays = MappedExperts(pack)
    assert arrays.array(checkpoint.tensors[NAME]) is None
    assert arrays.array(checkpoint.tensors["model.norm.weight"]) is None
    mapped_array = arrays.array(pack.applied(checkpoint).tensors[NAME])
    assert mapped_array is not None
    assert np.array_equal(np.array(mapped_array), stacked()[NAME])


def test_a_pack_that_changes_while_it_is_mapped_is_noticed(tmp_path: Path) -> None:
    folder = write_experts(tmp_path / "tiny")
    pack = packed(folder)
    info = pack.applied(checkpoint_of(folder)).tensors[NAME]
    content = pack.file.read_bytes()
    pack.file.unlink()
    pack.file.write_bytes(content)
    with pytest.raises(CheckpointCorrupt, match="was changed while it was read"):
        MappedExperts(pack).array(info)


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (native.FileUnreadable(12), CheckpointMissing, "cannot be mapped"),
        (native.RangeOutsideFile(1, 2, 3), CheckpointCorrupt, "is truncated"),
    ],
)
def test_what_the_system_refuses_is_told(
    tmp_path: Path, error: native.MappingError, kind: type[Exception], words: str
) -> None:
    def refuse(*_: object) -> mx.array:
        raise error

    folder = write_experts(tmp_path / "tiny")
    pack = packed(folder)
    with pytest.raises(kind, match=words):
        MappedExperts(pack, refuse).array(pack.applied(checkpoint_of(folder)).tensors[NAME])


def test_an_install_that_cannot_map_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = packed(write_experts(tmp_path / "tiny"))
    monkeypatch.setattr(mapped.native, "is_built", lambda: False)
    with pytest.raises(MappingUnavailable):
        MappedExperts(pack)
