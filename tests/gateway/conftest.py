"""A farm of scripted workers."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.gateway.farm import Farm


@pytest.fixture
async def farm(tmp_path: Path) -> AsyncIterator[Farm]:
    farm = Farm(tmp_path)
    await farm.workers.start()
    yield farm
    await farm.workers.stop(0.0)
    farm.sockets.close()
