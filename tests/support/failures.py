"""What a kernel says of results that could not be computed."""

import mlx.core as mx

from native import kernels

INDEX_OUTSIDE = "indices has a number that lies outside the matrix"


def problem_of(result: mx.array) -> str:
    """Compute floats that cannot be computed, see that none of them is a number, and return why."""
    assert bool(mx.all(mx.isnan(result)))
    problem = kernels.take_failure()
    assert problem is not None
    assert kernels.take_failure() is None
    return problem
