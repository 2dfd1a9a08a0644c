"""Rotary positions of every kind are those of mlx-lm's own classes, bit for bit, whatever a config states."""

from typing import Any

import mlx.core as mx
import pytest

from models.checkpoint.dialects import FULL, RopeLayout
from models.checkpoint.rope_parameters import read_rope
from models.layers.cache import Step
from models.layers.mlx_arithmetic import MlxArithmetic
from models.layers.rope import RopeConfig
from models.step import RowPlan, StepPlan

pytestmark = [
    # mlx-lm brings transformers, and both warn of things that are theirs.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

LONGEST = 4096
YARN = {"type": "yarn", "original_max_position_embeddings": 512}
SCALINGS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "linear": {"type": "linear", "factor": 4.0},
    "llama3": {
        "type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    },
    "dynamic": {"type": "dynamic", "factor": 1.7},
    **{f"yarn by {factor}": {**YARN, "factor": factor} for factor in (1.0, 2.0, 4.0, 40.0)},
    "yarn between turns": {**YARN, "factor": 4.0, "beta_fast": 12, "beta_slow": 3},
    "yarn of one pair": {**YARN, "factor": 4.0, "beta_fast": 9.1, "beta_slow": 9.0},
    "yarn of short contexts": {**YARN, "factor": 4.0, "original_max_position_embeddings": 16},
    "yarn with magnitudes": {**YARN, "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 1.2},
    "longrope": {
        "type": "longrope",
        "original_max_position_embeddings": 512,
        "long_factor": [1.0 + pair / 3 for pair in range(16)],
        "short_factor": [1.0] * 16,
    },
}


@pytest.mark.parametrize("offset", [0, 700])
@pytest.mark.parametrize("theta", [10_000.0, 500_000.0])
@pytest.mark.parametrize("traditional", [False, True])
@pytest.mark.parametrize("name", SCALINGS)
def test_turned_heads_have_the_bits_of_mlx_lm(name: str, traditional: bool, theta: float, offset: int) -> None:
    from mlx_lm.models.rope_utils import initialize_rope

    scaling, width = SCALINGS[name], 32
    is_neighbours = traditional and name != "longrope"  # mlx-lm's class turns halves in any case
    theirs = initialize_rope(width, theta, is_neighbours, scaling, max_position_embeddings=LONGEST)
    text = {"rope_theta": theta, "rope_scaling": scaling, "max_position_embeddings": LONGEST}
    parameters = read_rope(text, RopeLayout.THETA, "config.json")[FULL]
    ours = MlxArithmetic().rotary(width, RopeConfig.of(parameters, traditional=is_neighbours))
    mx.random.seed(5)
    x = mx.random.normal((1, 3, 9, width))
    step = Step(StepPlan((RowPlan(0, (7,) * 9, offset, ()),)), mx.zeros((1, 9), dtype=mx.int32))
    assert mx.array_equal(ours.at(step).rotate(x, step.spans[0]), theirs(x, offset=offset))
