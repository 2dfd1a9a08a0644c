"""How a worker holds the experts of a model: what its settings say, what there is room for, and what is told of it."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from pomona.v1 import model_pb2, server_pb2

from gateway.catalogue import OWN_FILES, stamp_of
from models.checkpoint.checkpoint import open_checkpoint
from models.checkpoint.errors import CheckpointCorrupt
from models.experts.mapped import can_map
from models.experts.options import ExpertsMode
from models.experts.pack import PACK_FILE
from models.experts.pack_builder import build_pack, plan_pack
from models.registry import LoadedModel
from tests.models.experts.holding import LARGE, write_mixture
from tests.support.tiny_families import Tiny, family_config
from tests.support.tiny_models import write_llama, write_tensors
from tests.support.tiny_whisper import write_mlx
from worker.errors import ModelExceedsMemory, ModelLoadFailed, UnsupportedOption
from worker.expert_loading import USAGE_FILE, expert_options
from worker.fit import estimate
from worker.loading import loaded_message, make_workload
from worker.services.stats import stats_message
from worker.settings import WorkerSettings

RESIDENT, MAPPED, SLAB = ExpertsMode
needs_mapping = pytest.mark.skipif(not can_map(), reason="this install maps no files")
# Small enough that experts weigh.
BOUNDS: dict[str, Any] = {"max_batch_rows": 1, "context_tokens": 64, "prefix_cache_bytes": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mixture(tmp_path_factory.mktemp("mixture") / "model", LARGE)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mixture(tmp_path_factory.mktemp("mixture") / "model", LARGE, is_packed=False)


def told(checkpoint: Path, **changes: Any) -> WorkerSettings:
    needed = {"instance_id": "0a", "model": "tiny", "socket": "/tmp/w.sock", "secret": "x"}
    return WorkerSettings(**needed, checkpoint=str(checkpoint), **{**BOUNDS, **changes})


def held(settings: WorkerSettings) -> tuple[LoadedModel, model_pb2.Model, server_pb2.ModelStats]:
    """Load a model and close it; return what is told of it meanwhile."""
    workload = make_workload(settings, lambda _: None)
    loaded = workload.load(lambda _: None)
    told_of = loaded_message(loaded, 64, settings), stats_message("tiny", workload.counts(), 1)
    workload.close()
    return loaded, *told_of


def part(response: model_pb2.EstimateModelResponse, name: str) -> int:
    return getattr(response.estimate, f"{name}_bytes")


def test_all_experts_are_resident_where_there_is_room(bare: Path) -> None:
    response = estimate(bare, BOUNDS)
    assert response.options.experts_mode == model_pb2.EXPERTS_MODE_RESIDENT
    assert part(response, "experts") == part(response, "all_experts") > 0
    options = expert_options(open_checkpoint(bare), told(bare))
    assert (options.mode, options.budget_bytes, options.usage_file) == (RESIDENT, None, None)


def test_a_step_has_room_for_the_answers_of_experts(tmp_path: Path) -> None:
    steps = [
        part(
            estimate(write_mixture(tmp_path / str(chosen), tiny, is_packed=False), {"context_tokens": 600}), "transient"
        )
        for chosen, tiny in (
            (2, Tiny("qwen3_moe", {"num_experts_per_tok": 2})),
            (7, Tiny("qwen3_moe", {"num_experts_per_tok": 7})),
        )
    ]
    moe = family_config(Tiny("qwen3_moe"))
    width = 3 * moe["moe_intermediate_size"] + 2 * moe["hidden_size"]
    assert steps[1] - steps[0] == 512 * 4 * 5 * width


def test_without_room_for_all_they_lie_in_slabs_of_what_is_left(bare: Path) -> None:
    resident = estimate(bare, BOUNDS)
    budget = part(resident, "total") - part(resident, "experts") // 4
    response = estimate(bare, BOUNDS, budget)
    assert response.options.experts_mode == model_pb2.EXPERTS_MODE_SLAB
    assert part(response, "total") == budget
    assert response.options.expert_budget_bytes == part(response, "experts") < part(response, "all_experts")
    options = expert_options(open_checkpoint(bare), told(bare, budget_bytes=budget))
    assert (options.mode, options.budget_bytes) == (SLAB, response.options.expert_budget_bytes)
    assert options.usage_file == bare / USAGE_FILE


def write_mixed(folder: Path, *, is_packed: bool) -> Path:
    """Write a mixture with a tensor for each matrix of each expert, of which one has another dtype."""
    write_mixture(folder, "qwen3_moe each", is_packed=False)
    tensors = mx.load(str(folder / "model.safetensors"))
    assert isinstance(tensors, dict)
    name = next(name for name in tensors if name.endswith(".experts.3.up_proj.weight"))
    write_tensors(folder, {**tensors, name: tensors[name].astype(mx.float16)})
    if is_packed:
        build_pack(plan_pack(folder, open_checkpoint(folder).tensors), lambda phase, done, total: None)
    return folder


def test_experts_that_slabs_cannot_hold_are_told_before_anything_is_read(tmp_path: Path) -> None:
    folder = write_mixed(tmp_path / "model", is_packed=False)
    resident = estimate(folder, BOUNDS)
    assert resident.options.experts_mode == model_pb2.EXPERTS_MODE_RESIDENT
    with pytest.raises(ModelLoadFailed, match="which slabs cannot hold") as failure:
        estimate(folder, {**BOUNDS, "experts": "slab"})
    assert failure.value.metadata["option"] == "experts"
    with pytest.raises(ModelLoadFailed, match="which slabs cannot hold"):
        expert_options(open_checkpoint(folder), told(folder, budget_bytes=part(resident, "total") - 1))


@needs_mapping
def test_experts_that_slabs_cannot_hold_are_mapped_from_a_pack(tmp_path: Path) -> None:
    folder = write_mixed(tmp_path / "model", is_packed=True)
    resident = estimate(folder, BOUNDS)
    budget = part(resident, "total") - 1
    response = estimate(folder, BOUNDS, budget)
    assert response.options.experts_mode == model_pb2.EXPERTS_MODE_MAPPED
    _, message, stats = held(told(folder, budget_bytes=budget))
    assert part(response, "experts") == message.memory.resident_expert_bytes > 0
    assert stats.memory.mapped_expert_bytes > 0
    assert part(resident, "experts") == held(told(folder))[1].memory.resident_expert_bytes


@needs_mapping
def test_slabs_are_taken_before_a_pack_that_they_read_from(folder: Path) -> None:
    budget = part(estimate(folder, BOUNDS), "total") - 1
    assert expert_options(open_checkpoint(folder), told(folder, budget_bytes=budget)).mode is SLAB


@needs_mapping
def test_without_room_for_slabs_they_are_mapped_from_a_pack(folder: Path) -> None:
    budget = part(estimate(folder, {**BOUNDS, "experts": "slab"}, 1), "total")
    assert estimate(folder, BOUNDS, budget).options.experts_mode == model_pb2.EXPERTS_MODE_SLAB
    response = estimate(folder, BOUNDS, budget - 1)
    assert response.options.experts_mode == model_pb2.EXPERTS_MODE_MAPPED
    assert part(response, "experts") < part(response, "all_experts")
    assert expert_options(open_checkpoint(folder), told(folder, budget_bytes=budget - 1)).mode is MAPPED


def test_a_context_leaves_less_for_slabs(bare: Path) -> None:
    budget = part(estimate(bare, {**BOUNDS, "experts": "slab"}, 1), "total") + 1_000_000  # above the fewest
    response = estimate(bare, BOUNDS, budget)
    most = response.largest_context_tokens
    assert BOUNDS["context_tokens"] < most < 4096
    longest = estimate(bare, {**BOUNDS, "context_tokens": most}, budget)
    assert (part(longest, "total"), part(longest, "experts") < part(response, "experts")) == (budget, True)
    assert part(estimate(bare, {**BOUNDS, "context_tokens": most + 1}, budget), "total") > budget


def test_resident_experts_that_do_not_fit_are_told_and_not_loaded(bare: Path) -> None:
    settings = {**BOUNDS, "experts": "resident"}
    response = estimate(bare, settings, 10_000_000)
    assert part(response, "total") > 10_000_000
    assert response.options.experts_mode == model_pb2.EXPERTS_MODE_RESIDENT
    with pytest.raises(
        ModelExceedsMemory, match=r"resident it takes \d+ bytes of the 10000000 .* --experts slab has fewer"
    ) as failure:
        expert_options(open_checkpoint(bare), told(bare, experts="resident", budget_bytes=10_000_000))
    told_of = failure.value.metadata
    assert (told_of["option"], told_of["budget_bytes"]) == ("experts", "10000000")
    assert 10_000_000 < int(told_of["needed_bytes"]) <= part(response, "total")


def test_slabs_are_refused_where_their_size_follows_from_what_there_is_not(bare: Path) -> None:
    with pytest.raises(
        ModelExceedsMemory, match=r"with its experts slab it takes \d+ bytes of the 10000000 for models$"
    ):
        expert_options(open_checkpoint(bare), told(bare, budget_bytes=10_000_000))
    settings = told(bare, experts="slab", expert_budget=8_000_000, budget_bytes=10_000_000)
    assert expert_options(open_checkpoint(bare), settings).budget_bytes == 8_000_000


@needs_mapping
@pytest.mark.parametrize("mode", ExpertsMode)
def test_a_loaded_model_tells_how_its_experts_are_held(folder: Path, mode: ExpertsMode) -> None:
    settings = told(folder, experts=mode.value)
    loaded, message, stats = held(settings)
    assert message.experts == model_pb2.RoutedExperts(
        layers=2,
        experts_per_layer=64,
        experts_per_token=3,
        stored_bytes=message.experts.stored_bytes,
        is_packed=True,
    )
    estimated = estimate(folder, {**BOUNDS, "experts": mode.value})
    assert message.runtime.options.experts_mode == estimated.options.experts_mode
    assert message.runtime.options.expert_budget_bytes == estimated.options.expert_budget_bytes
    held_bytes = (stats.memory.expert_slab_bytes, stats.memory.mapped_expert_bytes)
    assert [num_bytes > 0 for num_bytes in held_bytes] == [mode is SLAB, mode is MAPPED]
    warmed_up = (stats.expert_bytes_read_total, stats.expert_stall_us_total, stats.expert_hit_ratio)
    assert warmed_up == (0, 0, float(mode is SLAB))
    assert not (folder / USAGE_FILE).exists()
    in_memory = part(estimated, "experts") if mode is not SLAB else 0
    assert part(estimated, "weights") + in_memory == loaded.weights_bytes
    assert (message.memory.weights_bytes, message.memory.resident_expert_bytes) == (
        part(estimated, "weights"),
        in_memory,
    )
    estimate_of = estimated.estimate
    assert (estimate_of.total_experts, estimate_of.slab_experts) == (128, 128 if mode is SLAB else 0)
    assert part(estimated, "experts") * 0.99 < held_bytes[0] <= part(estimated, "experts") or mode is not SLAB


def test_the_least_budget_is_told_and_is_enough(bare: Path) -> None:
    estimated = estimate(bare, BOUNDS).estimate
    settings = {**BOUNDS, "experts": "slab"}
    least = estimated.least_expert_budget_bytes
    assert estimate(bare, {**settings, "expert_budget": least}).options.expert_budget_bytes == least > 0
    with pytest.raises(ModelLoadFailed, match=f"a step needs {least} bytes"):
        estimate(bare, {**settings, "expert_budget": least - 1})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, {"experts": "resident", "why": "all fit", "pack": False}),
        (
            {"experts": "slab", "expert_budget": 8_000_000},
            {"experts": "slab", "why": "asked for", "pack": False, "expert_budget": 8_000_000},
        ),
    ],
)
def test_a_load_logs_where_experts_lie_and_why(
    bare: Path, caplog: pytest.LogCaptureFixture, changes: dict[str, Any], words: dict[str, Any]
) -> None:
    caplog.set_level("INFO")
    workload = make_workload(told(bare, **changes), lambda _: None)
    workload.load(lambda _: None)
    workload.close()
    (record,) = (record for record in caplog.records if record.message == "experts are held")
    assert {name: vars(record)[name] for name in words} == words


@needs_mapping
def test_a_pack_of_no_use_is_told_where_it_is_wanted_alone(tmp_path: Path) -> None:
    folder = write_mixture(tmp_path / "model", LARGE)
    (folder / PACK_FILE).write_bytes((folder / PACK_FILE).read_bytes()[:-1])
    resident = estimate(folder, BOUNDS)
    assert estimate(folder, BOUNDS, part(resident, "total") - 1).options.experts_mode == model_pb2.EXPERTS_MODE_SLAB
    with pytest.raises(CheckpointCorrupt, match="is truncated"):
        estimate(folder, {**BOUNDS, "experts": "mapped"})


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"experts": "slab"}, "experts"),
        ({"expert_budget": 1 << 20}, "expert_budget"),
        ({"expert_trace": "/t"}, "expert_trace"),
    ],
)
def test_a_model_without_experts_is_asked_for_none(tmp_path: Path, changes: dict[str, Any], option: str) -> None:
    folder = write_llama(tmp_path / "tiny")
    with pytest.raises(ModelLoadFailed, match=f"{option} is set, and this model has no routed experts") as failure:
        expert_options(open_checkpoint(folder), told(folder, **changes))
    assert failure.value.metadata["option"] == option


@pytest.mark.parametrize("write", [write_llama, write_mlx])
@pytest.mark.parametrize(
    ("name", "value", "field"), [("experts", "slab", "experts_mode"), ("expert_budget", 1 << 20, "expert_budget_bytes")]
)
def test_an_estimate_without_experts_is_asked_for_none(
    tmp_path: Path, write: Any, name: str, value: Any, field: str
) -> None:
    folder = write(tmp_path / "tiny")
    with pytest.raises(UnsupportedOption, match="this model has no routed experts") as failure:
        estimate(folder, {name: value})
    assert failure.value.field == f"options.{field}"


def test_a_trace_that_cannot_be_written_fails_the_load_by_its_name(bare: Path, tmp_path: Path) -> None:
    workload = make_workload(told(bare, expert_trace=str(tmp_path / "no" / "trace")), lambda _: None)
    with pytest.raises(ModelLoadFailed, match="the file of expert_trace cannot be written: No such file") as failure:
        workload.load(lambda _: None)
    assert failure.value.metadata["option"] == "expert_trace"


def test_a_trace_is_whole_once_the_model_is_unloaded(bare: Path, tmp_path: Path) -> None:
    workload = make_workload(told(bare, expert_trace=str(tmp_path / "trace")), lambda _: None)
    workload.load(lambda _: None)  # computes two tokens
    workload.close()
    _, *records = [json.loads(line) for line in (tmp_path / "trace").read_text().splitlines()]
    assert [(record["l"], record["s"][0], record["s"][2]) for record in records] == [(0, 1, 3), (1, 1, 3)]


def test_counts_of_use_are_no_part_of_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    stamp = stamp_of(tmp_path)
    for name in (USAGE_FILE, f"{USAGE_FILE}.12.tmp"):
        (tmp_path / name).write_text("0 0 1\n")
    assert stamp_of(tmp_path) == stamp
    assert USAGE_FILE in OWN_FILES
