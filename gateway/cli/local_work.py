"""Work on models of this machine by a worker of its own: done, shown while it goes on, and its failures told."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pomona.v1 import model_pb2

from gateway.cli import output
from gateway.cli.failures import CliError, ServerError, SetupError, StatusFacts
from gateway.cli.gateway_failure import told
from gateway.cli.own_worker import has_worker, quiet_log, worker_command
from gateway.cli.progress import Display, display
from gateway.errors import GatewayError, load_error
from gateway.watched_one_shot import OneShotRefused, WatchedOneShot, Work

# Of what such work is refused for beside what a load may be refused for.
CODES = {
    "OUTPUT_EXISTS": "ALREADY_EXISTS",
    "DISK_FULL": "FAILED_PRECONDITION",
    "PACK_BUSY": "ABORTED",
    "PACK_FAILED": "FAILED_PRECONDITION",
    "FUSE_BUSY": "ABORTED",
    "FUSE_FAILED": "FAILED_PRECONDITION",
    "FUSE_DIFFERS": "FAILED_PRECONDITION",
    "ADAPTER_NOT_FOUND": "NOT_FOUND",
    "ADAPTER_INCOMPATIBLE": "FAILED_PRECONDITION",
}


class WorkDisplay(ABC):
    """Shows what is said of a work: lines or a bar for people, an object on standard output a message for programs.

    Args:
        name: of the model.
        as_json: whether it is for programs.
        last: name of the message that ends the work, which is kept and not shown.

    Attributes:
        name: as given.
        result: facts of the last message.
    """

    def __init__(self, name: str, last: str, *, as_json: bool) -> None:
        self.name = name
        self.result: Mapping[str, Any] = {}
        self._last = last
        self._as_json = as_json
        self._shown: Display | None = None

    def take(self, what: str, facts: Mapping[str, Any]) -> None:
        """Take a message."""
        if what == self._last:
            self.result = facts
        elif self._as_json:
            output.emit({what: self.facts_for_programs(what, facts)})
        elif what == "progress":
            self.before_progress()
            self._shown = self._shown or display(self.name)
            self._shown.update(model_pb2.Model(state=model_pb2.MODEL_STATE_LOADING, load_progress=self.progress(facts)))
        else:
            self.tell(what, facts)

    def close(self) -> None:
        """Show nothing more."""
        if self._shown is not None:
            self._shown.close()
            self._shown = None

    def facts_for_programs(self, what: str, facts: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: ARG002 - by kind
        """Return what is printed of a message."""
        return facts

    def before_progress(self) -> None:  # noqa: B027 - most have nothing to tell
        """Tell what was not told yet."""

    @abstractmethod
    def tell(self, what: str, facts: Mapping[str, Any]) -> None:
        """Tell a person of a message that is no progress."""

    @abstractmethod
    def progress(self, facts: Mapping[str, Any]) -> model_pb2.LoadProgress:
        """Return how far it is, as of a load."""


def check_worker() -> None:
    """Raise `SetupError` where this install has no worker."""
    if not has_worker():
        raise SetupError("this install has no worker to do it: pip install 'pomona[worker]'")


def do(work: Work, folder: Path, settings: Mapping[str, Any], shown: WorkDisplay) -> Mapping[str, Any]:
    """Have work done, and return the facts of its last message.

    Args:
        work: which kind.
        folder: of the model.
        settings: of the work.
        shown: is told all that is said, and closed.

    Raises:
        CliError: it was not done.
    """
    worker = WatchedOneShot(work, worker_command(work.verb), quiet_log())
    try:
        asyncio.run(worker.run(shown.name, folder, settings, shown.take))
    except OneShotRefused as refused:
        raise _told(shown.name, refused) from refused
    except GatewayError as error:
        raise told(error) from error
    except KeyboardInterrupt:
        output.notice("nothing unfinished is left")
        raise
    finally:
        shown.close()
    return shown.result


def _told(model: str, refused: OneShotRefused) -> CliError:
    if refused.reason in CODES:
        return ServerError(StatusFacts(CODES[refused.reason], str(refused), refused.reason, dict(refused.metadata)))
    return told(load_error(model, refused.reason, f"{refused}.", refused.metadata))
