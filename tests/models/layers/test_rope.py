"""Rotary positions against the formula, computed in float64."""

import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from models.checkpoint.dialects import FULL, RopeLayout
from models.checkpoint.rope_parameters import read_rope
from models.layers.arithmetic import Arithmetic
from models.layers.cache import Step
from models.layers.mlx_arithmetic import MlxArithmetic
from models.layers.native_arithmetic import NativeArithmetic
from models.layers.rope import RopeConfig
from models.step import RowPlan, StepPlan
from native import kernels

HEAD_DIM = 16
ARITHMETICS: list[Callable[[], Arithmetic]] = [MlxArithmetic, *([NativeArithmetic] if kernels.is_available() else [])]
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 4,
    "beta_slow": 0.5,
}


def config_of(raw: dict[str, Any]) -> RopeConfig:
    parameters = read_rope(raw, RopeLayout.THETA, "config.json")[FULL]
    return RopeConfig.of(parameters, traditional=raw.get("rope_traditional", False))


def angles_a_token(raw: dict[str, Any]) -> list[float]:
    """Radians by which each pair turns from one token to the next."""
    scaling = raw.get("rope_scaling") or {}
    plain = [raw["rope_theta"] ** (-2 * pair / HEAD_DIM) for pair in range(HEAD_DIM // 2)]
    if not scaling:
        return plain
    if scaling["rope_type"] == "linear":
        return [angle / scaling["factor"] for angle in plain]
    if scaling["rope_type"] == "yarn":
        return yarn_angles(plain, raw["rope_theta"], scaling)
    stretched: list[float] = []
    for angle in plain:
        turns = scaling["original_max_position_embeddings"] * angle / (2 * math.pi)
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        kept = min(1.0, max(0.0, (turns - low) / (high - low)))
        stretched.append(angle * (kept + (1 - kept) / scaling["factor"]))
    return stretched


def yarn_angles(plain: list[float], theta: float, scaling: dict[str, Any]) -> list[float]:
    """The mixture changes linearly with the number of the pair, between whole numbers."""
    ends: list[float] = []
    for turns in (scaling["beta_fast"], scaling["beta_slow"]):
        tokens = scaling["original_max_position_embeddings"] / (2 * math.pi * turns)
        ends.append(HEAD_DIM * math.log(tokens) / (2 * math.log(theta)))
    first, last = math.floor(ends[0]), math.ceil(ends[1])
    assert 0 <= first < last < HEAD_DIM // 2
    kept = [1 - min(1.0, max(0.0, (pair - first) / (last - first))) for pair in range(HEAD_DIM // 2)]
    return [angle * (share + (1 - share) / scaling["factor"]) for angle, share in zip(plain, kept, strict=True)]


def rotated(x: np.ndarray, raw: dict[str, Any], offset: int) -> np.ndarray:
    """Rotate the halves of x [T, D] against each other."""
    positions = offset + np.arange(len(x), dtype=np.float64)[:, None]
    cosines, sines = np.cos(positions * angles_a_token(raw)), np.sin(positions * angles_a_token(raw))
    if (raw.get("rope_scaling") or {}).get("rope_type") == "yarn":
        x = x * (0.1 * math.log(raw["rope_scaling"]["factor"]) + 1)
    first, second = x[:, : HEAD_DIM // 2], x[:, HEAD_DIM // 2 :]
    return np.concatenate([first * cosines - second * sines, second * cosines + first * sines], axis=1)


def step_at(*rows: tuple[int, int]) -> Step:
    """Return a step whose rows begin at a position and have so many tokens."""
    plans = [RowPlan(slot, (7,) * count, start, ()) for slot, (start, count) in enumerate(rows)]
    return Step(StepPlan(tuple(plans)), mx.zeros((1, sum(count for _, count in rows)), dtype=mx.int32))


@pytest.mark.parametrize("kind", ARITHMETICS)
@pytest.mark.parametrize("offset", [0, 1, 300])
@pytest.mark.parametrize(
    "scaling", [None, {"rope_type": "linear", "factor": 4.0}, LLAMA3, YARN], ids=["default", "linear", "llama3", "yarn"]
)
def test_turns_each_pair_by_its_angle(
    kind: Callable[[], Arithmetic], scaling: dict[str, Any] | None, offset: int
) -> None:
    raw = {"rope_theta": 10_000.0, "rope_scaling": scaling}
    x = np.random.default_rng(3).normal(size=(5, HEAD_DIM))
    step = step_at((17, 2), (offset, len(x)))
    rotation = kind().rotary(HEAD_DIM, config_of(raw)).at(step)
    ours = np.array(rotation.rotate(mx.array(x.astype(np.float32))[None, None], step.spans[1]))[0, 0]
    assert np.abs(ours - rotated(x, raw, offset)).max() < 2e-4


@pytest.mark.parametrize("kind", ARITHMETICS)
def test_rows_of_one_token_each_are_turned_together(kind: Callable[[], Arithmetic]) -> None:
    raw: dict[str, Any] = {"rope_theta": 10_000.0}
    starts = [0, 5, 300]
    x = np.random.default_rng(5).normal(size=(len(starts), 2, 1, HEAD_DIM))
    rotation = kind().rotary(HEAD_DIM, config_of(raw)).at(step_at(*((start, 1) for start in starts)))
    ours = np.array(rotation.rotate_each(mx.array(x.astype(np.float32))))
    for row, start in enumerate(starts):
        for head in range(2):
            assert np.abs(ours[row, head] - rotated(x[row, head], raw, start)).max() < 2e-4


@pytest.mark.skipif(not kernels.is_available(), reason="built without the native extension")
@pytest.mark.parametrize("traditional", [False, True])
@pytest.mark.parametrize("scaling", [None, {"rope_type": "linear", "factor": 4.0}, LLAMA3, YARN])
def test_native_positions_are_those_of_mlx(scaling: dict[str, Any] | None, traditional: bool) -> None:
    raw = {"rope_theta": 100_000.0, "rope_scaling": scaling, "rope_traditional": traditional}
    config = config_of(raw)
    x = mx.array(np.random.default_rng(4).normal(size=(1, 2, 7, HEAD_DIM)).astype(np.float32))
    step = step_at((3000, 7))
    ours, theirs = (
        kind().rotary(HEAD_DIM, config).at(step).rotate(x, step.spans[0]) for kind in (NativeArithmetic, MlxArithmetic)
    )
    # The angles have the same bits; a product and a sum may be rounded once instead of twice.
    assert np.abs(np.array(ours) - np.array(theirs)).max() < 1e-6
