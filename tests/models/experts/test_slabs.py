"""How a budget is divided among slabs, and that it holds at every instant."""

import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from models.checkpoint.checkpoint import Checkpoint, open_checkpoint
from models.checkpoint.errors import CheckpointCorrupt, CheckpointRejected
from models.checkpoint.expert_tensors import ExpertsShape
from models.checkpoint.stored_experts import StoredExperts, stored_experts
from models.errors import ExpertUnreadable, SlotsTooFew
from models.experts.errors import SlabsUnavailable
from models.experts.expert_slab import READ_BYTES, READ_THREADS
from models.experts.geometry import Geometry, conversion_of
from models.experts.holding import Holding
from models.experts.options import ExpertsMode, ExpertsOptions
from models.experts.pack import PACK_FILE
from models.experts.slabs import Slabs
from models.layers.native_arithmetic import NativeArithmetic
from native import kernels
from native.errors import MemoryUnshared, NotBuilt
from native.slab import Slab
from tests.models.experts.holding import write_mixture
from tests.models.families import QWEN3_MOE
from tests.support.tiny_families import write_family

PER_TOKEN = 3
READ_THROUGH = READ_THREADS * READ_BYTES


@pytest.fixture(scope="module", params=["qwen3_moe 4-bit", "qwen3_moe mixed"])
def layers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[StoredExperts]:
    """Return the experts of two layers: alike, and packed each in its own way."""
    return stored_layers(write_family(tmp_path_factory.mktemp("tiny"), QWEN3_MOE[request.param]))


def stored_layers(of: Path | Checkpoint) -> list[StoredExperts]:
    checkpoint = open_checkpoint(of) if isinstance(of, Path) else of
    found = [
        stored_experts(
            checkpoint,
            ExpertsShape(layer, f"model.layers.{layer}.mlp.switch_mlp", 8, 64, 64),
            lambda info, *, is_weight: info.dtype,
        )
        for layer in range(2)
    ]
    return [layer for layer in found if layer is not None]


def slabs_of(layers: list[StoredExperts], budget_bytes: int | None, usage_file: Path | None = None) -> Slabs:
    slabs = Slabs(PER_TOKEN, budget_bytes, usage_file)
    for layer in layers:
        slabs.experts(layer, NativeArithmetic(), "silu")
    return slabs


needs_kernels = pytest.mark.skipif(not kernels.is_available(), reason="built without the native extension")


@needs_kernels
def test_slabs_take_no_more_than_their_budget_and_not_much_less(layers: list[StoredExperts]) -> None:
    least = slabs_of(layers, None).least_bytes
    largest = max(Geometry.of(layer).expert_bytes for layer in layers)
    whole = slabs_of(layers, None)
    whole.fill()
    for budget in range(least, whole.nbytes + 20_000, 7_777):
        slabs = slabs_of(layers, budget)
        slabs.fill()
        assert slabs.nbytes <= budget
        if budget < whole.nbytes:
            # A slot less in each, and the rest of a page of each of up to nine parts.
            assert slabs.nbytes > budget - 2 * (largest + 9 * 4096)
        slabs.close()
    whole.close()


@needs_kernels
def test_without_a_budget_all_experts_have_a_slot(layers: list[StoredExperts]) -> None:
    slabs = slabs_of(layers, None)
    slabs.fill()
    assert sum(slab.residency.division.num_slots for slab in slabs._slabs) == 16
    assert slabs.num_layers == 2
    assert slabs.stored_bytes == sum(8 * part.nbytes for layer in layers for part in layer.parts)
    slabs.close()
    assert slabs.nbytes == 0


def test_a_budget_that_is_too_small_is_refused_with_the_smallest_that_is_not(layers: list[StoredExperts]) -> None:
    least = slabs_of(layers, None).least_bytes
    for budget in (0, READ_THROUGH, least - 1):
        slabs = slabs_of(layers, budget)
        with pytest.raises(SlotsTooFew) as refused:
            slabs.fill()
        assert refused.value.least_bytes == least
        assert str(least) in str(refused.value)
        assert slabs.nbytes == 0


def test_pages_are_counted(layers: list[StoredExperts]) -> None:
    geometry = Geometry.of(layers[0])
    for num_slots in (1, 5, 40):
        assert geometry.most_slots(geometry.slots_bytes(num_slots)) >= num_slots
        assert geometry.most_slots(geometry.slots_bytes(num_slots) - 1) < num_slots or num_slots == 1
    assert geometry.most_slots(0) == 0


def test_what_no_reader_converts_is_refused_by_name(layers: list[StoredExperts]) -> None:
    stack = replace(layers[0].parts[0], dtype="F32", read_as="BF16")
    with pytest.raises(CheckpointRejected, match="F32 and computed with as BF16") as refused:
        conversion_of(stack)
    assert refused.value.key == stack.name


@needs_kernels
@pytest.mark.parametrize("error", [NotBuilt, MemoryUnshared])
def test_a_device_or_an_install_without_slabs_is_told(
    layers: list[StoredExperts], monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(Slab, "add_region", refuse)
    slabs = slabs_of(layers, None)
    with pytest.raises(SlabsUnavailable):
        slabs.fill()
    assert slabs.nbytes == 0


@needs_kernels
def test_files_that_are_gone_or_changed_since_their_headers_were_read_are_refused(tmp_path: Path) -> None:
    folder = write_family(tmp_path / "tiny", QWEN3_MOE["qwen3_moe 4-bit"])
    file = folder / "model.safetensors"
    content, stat = file.read_bytes(), file.stat()
    other = tmp_path / "other"
    other.write_bytes(content)
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    for change in (lambda: other.replace(file), lambda: os.utime(file), lambda: file.write_bytes(content[:-1])):
        slabs = slabs_of(layers := stored_layers(folder), None)
        change()
        with pytest.raises(CheckpointCorrupt, match="was changed while it was read") as changed:
            slabs.fill()
        assert (changed.value.file, slabs.nbytes) == (file.name, 0)
    file.unlink()
    with pytest.raises(ExpertUnreadable, match="No such file") as refused:
        slabs_of(layers, None).fill()
    assert refused.value.code == errno.ENOENT


@needs_kernels
def test_a_pack_that_was_replaced_since_it_was_checked_is_refused(tmp_path: Path) -> None:
    holding = Holding.of(open_checkpoint(write_mixture(tmp_path / "model")), ExpertsOptions(ExpertsMode.SLAB))
    layers = stored_layers(holding.checkpoint)
    pack = tmp_path / "model" / PACK_FILE
    (tmp_path / "other").write_bytes(pack.read_bytes())
    (tmp_path / "other").replace(pack)
    with pytest.raises(CheckpointCorrupt, match="was changed while it was read") as changed:
        slabs_of(layers, None).fill()
    assert changed.value.file == PACK_FILE


MEASURE = """
import sys, threading, time
from pathlib import Path
import mlx.core as mx
from models.step import NumericPath
from tests.models.experts.slab_models import in_slabs
from tests.models.stepping import step_logits

def anonymous():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) << 10

with in_slabs(Path(sys.argv[1]), NumericPath.FAST, int(sys.argv[2])) as model:
    cache, most, ended = model.loaded.make_cache(1), [0], threading.Event()
    step_logits(model.loaded, cache, (1,))
    before = anonymous()
    def watch():
        while not ended.wait(0.002):
            most[0] = max(most[0], anonymous())
    watcher = threading.Thread(target=watch)
    watcher.start()
    for topic in range(4):
        step_logits(model.loaded, cache, tuple(range(topic * 60, topic * 60 + 40)))
        for token in range(5):
            step_logits(model.loaded, cache, (topic * 50 + token,))
    ended.set()
    watcher.join()
    print(max(most[0], anonymous()) - before, model.slabs.nbytes, model.slabs.account.bytes_read_total)
"""


@needs_kernels
def test_the_budget_holds_at_every_instant_of_a_change_of_topic(tmp_path: Path) -> None:
    # Four layers of 16 experts of 768 kB: 48 MB.
    tiny = replace(
        QWEN3_MOE["qwen3_moe"],
        config={"num_experts": 16, "num_hidden_layers": 4, "moe_intermediate_size": 1024, "num_experts_per_tok": 2},
    )
    folder, budget = write_family(tmp_path / "tiny", tiny), 16 << 20
    result = subprocess.run(
        [sys.executable, "-P", "-c", MEASURE, str(folder), str(budget)],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
        env={"PYTHONPATH": str(Path(__file__).parents[3]), "PATH": "/usr/bin:/bin"},
    )
    assert result.returncode == 0, result.stderr
    grown, slab_bytes, read_bytes = map(int, result.stdout.split())
    assert slab_bytes <= budget
    assert read_bytes > 2 * (48 << 20) > budget
    # What steps compute with takes a little as well.
    assert grown < budget + (6 << 20)
