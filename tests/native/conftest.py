"""Where kernels are tested: on the CPU, as one set of instructions after another computes."""

from collections.abc import Iterator

import mlx.core as mx
import pytest

from native import kernels
from tests.native.arrays import EVERY_SET


@pytest.fixture
def cpu() -> Iterator[None]:
    """Compute on the CPU, and leave the kernels as they were."""
    device, best, threads = mx.default_device(), kernels.instruction_set(), kernels.threads()
    mx.set_default_device(mx.cpu)
    yield
    mx.set_default_device(device)
    kernels.choose_instruction_set(best)
    kernels.set_threads(threads)


@pytest.fixture(params=EVERY_SET)
def instructions(cpu: None, request: pytest.FixtureRequest) -> str:
    """Let each set of instructions compute in turn."""
    kernels.choose_instruction_set(request.param)
    return request.param
