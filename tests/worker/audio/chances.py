"""Made-up probabilities of speech for which goldens are stored."""

import numpy as np

CASES = range(40)


def chances(case: int) -> list[float]:
    """Return a walk that lingers at both ends and in between, so that every rule is met."""
    draws = np.random.default_rng(case)
    levels = draws.choice([0.05, 0.3, 0.4, 0.6, 0.95], 60, p=[0.3, 0.15, 0.15, 0.15, 0.25])
    held = draws.integers(1, 1 + draws.integers(2, 16), 60)
    return [
        round(float(chance), 3) for chance in np.clip(np.repeat(levels, held) + draws.normal(0, 0.04, held.sum()), 0, 1)
    ]
