"""A failure of this machine, told as a server would tell it."""

from gateway.cli.failures import ServerError, StatusFacts
from gateway.errors import GatewayError
from gateway.status import failure_of, status_of


def told(error: GatewayError) -> ServerError:
    """Return `error` as the status that a server would answer with."""
    failure = failure_of(error)
    return ServerError(StatusFacts(status_of(error).code.name, failure.message, failure.reason, dict(failure.metadata)))
