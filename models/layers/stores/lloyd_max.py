"""The quantizer of fewest mean squared error for a standard normal variable.

Each centroid is the mean of the values that are nearest to it. Lloyd's iteration creeps towards that for many levels,
so the same equations are solved by Newton's method; the matrix has three diagonals.

Source: Lloyd 1982, "Least squares quantization in PCM"; Max 1960, "Quantizing for minimum distortion".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import NormalDist

_MOST_STEPS = 50
_TOLERANCE = 1e-12


def centroids(bits: int) -> list[float]:
    """Return the 2**bits centroids, ascending and symmetric about 0."""
    upper = _upper_half(1 << bits)
    return [-value for value in reversed(upper)] + upper


def boundaries(levels: Sequence[float]) -> list[float]:
    """Return the middles between neighbours: one fewer than `levels`."""
    return [(low + high) / 2 for low, high in pairwise(levels)]


def _upper_half(num_levels: int) -> list[float]:
    """Return the positive centroids."""
    # Many levels lie as if drawn from a normal density of variance 3 (Panter and Dite 1951).
    start = NormalDist(0, math.sqrt(3))
    half = num_levels // 2
    levels = [start.inv_cdf((half + index + 0.5) / num_levels) for index in range(half)]
    for _ in range(_MOST_STEPS):
        step = _newton_step(levels)
        levels = [level - change for level, change in zip(levels, step, strict=True)]
        if max(map(abs, step)) < _TOLERANCE:
            break
    return levels


def _newton_step(levels: Sequence[float]) -> list[float]:
    """Return by how much each level is to fall."""
    edges = [0.0, *boundaries(levels), math.inf]
    residuals: list[float] = []
    below: list[float] = []
    above: list[float] = []
    for level, (low, high) in zip(levels, pairwise(edges), strict=True):
        mass = (math.erfc(low / math.sqrt(2)) - math.erfc(high / math.sqrt(2))) / 2
        low_density, high_density = _density(low), _density(high)
        mean = (low_density - high_density) / mass
        residuals.append(level - mean)
        # How the mean moves with an edge, half of which moves with the neighbour.
        below.append(-low_density * (mean - low) / mass / 2 if low > 0 else 0.0)
        above.append(-high_density * (high - mean) / mass / 2 if high < math.inf else 0.0)
    diagonal = [1 + left + right for left, right in zip(below, above, strict=True)]
    return _solve(below, diagonal, above, residuals)


def _density(x: float) -> float:
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def _solve(
    below: Sequence[float], diagonal: Sequence[float], above: Sequence[float], right: Sequence[float]
) -> list[float]:
    """Solve a system of three diagonals by elimination."""
    ratios: list[float] = []
    solution: list[float] = []
    for index, value in enumerate(right):
        pivot = diagonal[index] - (below[index] * ratios[-1] if index else 0.0)
        ratios.append(above[index] / pivot)
        solution.append((value - (below[index] * solution[-1] if index else 0.0)) / pivot)
    for index in range(len(right) - 2, -1, -1):
        solution[index] -= ratios[index] * solution[index + 1]
    return solution
