"""A hub on this machine, and a cache for what comes from it."""

from collections.abc import Iterator

import pytest

from tests.support.hub import Hub


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub().running() as running:
        yield running
