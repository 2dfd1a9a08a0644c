"""What is told of slabs from headers, beside what they are."""

from pathlib import Path

import pytest

from models.checkpoint.checkpoint import open_checkpoint
from models.checkpoint.fit import TextSizes
from models.checkpoint.kv_scheme import KVScheme
from models.checkpoint.sizes import Computation
from models.checkpoint.slab_sizes import SlabKind, SlabSizes
from models.step import NumericPath
from native import kernels
from tests.models.experts.holding import LARGE, write_mixture
from tests.models.experts.slab_models import in_slabs

KINDS = (SlabKind(num_experts=40, fewest_slots=6, expert_bytes=100), SlabKind(10, 12, 50))
SIZES = SlabSizes(least=1200, most=4600, kinds=KINDS)


def test_room_is_never_more_than_there_are_experts() -> None:
    assert (SIZES.num_experts, SIZES.room(1200), SIZES.room(1 << 40)) == (50, 16, 50)
    rooms = [SIZES.room(budget) for budget in range(1200, 6000, 50)]
    assert rooms == sorted(rooms)


@pytest.mark.skipif(not kernels.is_available(), reason="built without the native extension")
@pytest.mark.parametrize("share", [0.0, 0.3, 0.8])
def test_room_is_what_slabs_have(tmp_path: Path, share: float) -> None:
    folder = write_mixture(tmp_path / "model", LARGE, is_packed=False)
    checkpoint = open_checkpoint(folder)
    computation = Computation.of(checkpoint, "cpu", has_kernels=True, is_reference=False)
    experts = TextSizes(checkpoint, computation, KVScheme()).experts
    assert experts is not None
    assert experts.slabs is not None
    budget = round(experts.slabs.least + share * (experts.slabs.most - experts.slabs.least))
    with in_slabs(folder, NumericPath.FAST, budget) as model:
        slots = sum(slab.residency.division.num_slots for slab in model.slabs._slabs)
    assert abs(experts.slabs.room(budget) - slots) <= 0.05 * experts.slabs.num_experts
