"""A worker's program, run for one question about a checkpoint of this machine: no server is needed."""

import importlib.util
import io
import sys

from structlog.typing import FilteringBoundLogger

from gateway.logs import LogRing, make_log
from gateway.process import Command
from gateway.settings import process_environment
from gateway.worker_starter import worker_environment

# What a worker reads tokenizers with, and a gateway alone does without.
WORKER_PACKAGE = "tokenizers"


def has_worker() -> bool:
    """Say whether this install has a worker's program."""
    return importlib.util.find_spec(WORKER_PACKAGE) is not None


def worker_command(name: str) -> Command:
    """Return the worker's program with one of its verbs, and its environment."""
    return Command((sys.executable, "-P", "-m", "worker", name), worker_environment(process_environment()))


def quiet_log() -> FilteringBoundLogger:
    """Return a log that nobody reads: what matters is told by the failure itself."""
    return make_log(LogRing(1), "error", "console", io.StringIO())
