"""What a config says of rotary positions of the kind `yarn`.

Source: Peng et al. 2023, arXiv:2309.00071; `_compute_yarn_parameters` of transformers 5.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.checkpoint.errors import CheckpointRejected
from models.checkpoint.values import MAX_TOKENS, read_bool, read_float, read_optional_float

# Where a config says nothing.
FAST_TURNS = 32.0
SLOW_TURNS = 1.0
_LEAST_TURNS = 1e-6
_MOST_TURNS = 1e6
# Configs round the magnitude that they state.
_TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True)
class Yarn:
    """Which wavelengths are stretched, and by how much what is turned grows.

    Attributes:
        fast_turns: a wavelength that turns more often than this within the original context stays (`beta_fast`).
        slow_turns: one that turns less often is stretched by the whole factor (`beta_slow`).
        magnitude: what turned elements are multiplied by.
    """

    fast_turns: float = FAST_TURNS
    slow_turns: float = SLOW_TURNS
    magnitude: float = 1.0


def read_yarn(fields: Mapping[str, Any], theta: float, place: str, file: str) -> Yarn:
    """Read the fields of the kind, `factor` and `original_max_position_embeddings` among them.

    Args:
        fields: by `<place>.<name>`.
        theta: base of the wavelengths.
        place: the key of the file that holds them.
        file: its base name, for errors.

    Raises:
        CheckpointRejected: a value is none that its key may have, or asks for what is not computed; naming the key.
    """
    if theta <= 1:
        raise CheckpointRejected(
            "is not over 1, which gives no wavelengths to choose from", file=file, key="rope_theta"
        )
    if not 1 <= read_float(fields, f"{place}.original_max_position_embeddings", file) <= MAX_TOKENS:
        key = f"{place}.original_max_position_embeddings"
        raise CheckpointRejected("is no number of tokens", file=file, key=key)
    fast = _turns(fields, f"{place}.beta_fast", file, FAST_TURNS)
    slow = _turns(fields, f"{place}.beta_slow", file, SLOW_TURNS)
    if fast <= slow:
        raise CheckpointRejected("is not over beta_slow", file=file, key=f"{place}.beta_fast")
    if not read_bool(fields, f"{place}.truncate", file, default=True):
        problem = "leaves the range of pairs unrounded, which is not computed"
        raise CheckpointRejected(problem, file=file, key=f"{place}.truncate")
    return Yarn(fast, slow, _magnitude(fields, place, file))


def _turns(fields: Mapping[str, Any], key: str, file: str, default: float) -> float:
    turns = read_float(fields, key, file, default=default)
    if not _LEAST_TURNS <= turns <= _MOST_TURNS:
        raise CheckpointRejected("is a number of turns beyond any reason", file=file, key=key)
    return turns


def _magnitude(fields: Mapping[str, Any], place: str, file: str) -> float:
    """Return the share that follows from the factor; one that is stated otherwise is refused."""
    factor = read_float(fields, f"{place}.factor", file)
    all_key = f"{place}.mscale_all_dim"
    scale = read_float(fields, f"{place}.mscale", file, default=1.0)
    of_all = None if fields.get(all_key) == 0 else read_optional_float(fields, all_key, file)
    if of_all is None and scale != 1:
        problem = "is stated without mscale_all_dim, which leaves open what it means"
        raise CheckpointRejected(problem, file=file, key=f"{place}.mscale")
    found = _growth(factor, scale) / _growth(factor, of_all or 0.0)
    stated = read_optional_float(fields, f"{place}.attention_factor", file)
    if stated is not None and not math.isclose(stated, found, rel_tol=_TOLERANCE):
        problem = f"is {stated:g}, not the {found:g} that follows from the factor, the only one that is computed"
        raise CheckpointRejected(problem, file=file, key=f"{place}.attention_factor")
    return found


def _growth(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0
