"""Who looks on is told of the lives of models, and metrics make numbers of them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.loads import MemoryLimits
from gateway.metrics import Metrics
from gateway.model_status import LoadOptions
from gateway.needs import Size
from tests.gateway.farm import LIMIT_S, Farm, S


async def needed(model: str, options: LoadOptions) -> Size:
    """Return that two models do not fit together."""
    return Size(60, 60)


@pytest.fixture
async def farm(tmp_path: Path) -> AsyncIterator[Farm]:
    made = Farm(tmp_path)
    yield made
    await made.workers.stop(0.0)
    made.sockets.close()


async def test_loads_crashes_and_evictions_are_counted(farm: Farm) -> None:
    metrics = Metrics()
    limits = MemoryLimits(100, min_residence_s=0.0, settle_s=0.0)
    workers = farm.workers_with(memory=limits, estimate=needed, onlooker=metrics)
    farm.script("a", crashes=1)
    await workers.start()
    await farm.ready_pid("a")
    await farm.ready_pid("b")
    await farm.until(S.UNLOADED, "a")

    def value(name: str, **labels: str) -> float:
        return metrics.registry.get_sample_value(f"pomona_{name}", labels) or 0.0

    assert value("model_changes_total", model="a", state="loading") == 2
    assert value("model_changes_total", model="a", state="backing_off") == 1
    assert value("worker_restarts_total", model="a") == 1
    assert value("model_load_duration_seconds_count", model="a") == 1
    assert value("model_evictions_total", model="a") == 1
    assert value("model_evictions_total", model="b") == 0
    assert LIMIT_S > value("model_load_duration_seconds_sum", model="a") > 0
