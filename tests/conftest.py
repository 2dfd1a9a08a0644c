"""Settings that all tests share."""

import os
import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

# In the background of a shell SIGINT is ignored, and so it would be by every process that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A slow machine is no failure: examples have no time limit of their own (each test has one).
settings.register_profile("pomona", deadline=None, print_blob=True)
settings.load_profile("pomona")

# Servers under test list the models of the hub's cache: not those of whoever runs the tests.
os.environ["HF_HUB_CACHE"] = str(Path(tempfile.gettempdir(), "pomona-tests-without-a-cache"))


@pytest.fixture(autouse=True, scope="session")
def no_state_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Have servers under test, and those that they start, keep what callers choose in a folder of the run."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
