"""What the hub, the network and the disk answer with, in words for whoever asked for the pull."""

from __future__ import annotations

import errno
from collections.abc import Generator
from contextlib import contextmanager

import httpx2
from huggingface_hub import get_token
from huggingface_hub.errors import (
    DisabledRepoError,
    FileMetadataError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from gateway.hub.messages import Failed, Kind, Order

UNAUTHORIZED = frozenset({401, 403})
KEPT = "what came is kept, and a new try goes on from there"
# The first that fits says it.
_TOLD: tuple[tuple[type[BaseException], Kind, str], ...] = (
    (
        OfflineModeIsEnabled,
        Kind.NOT_FOUND,
        "not all of it is in the cache, and HF_HUB_OFFLINE keeps this machine from the network",
    ),
    (FileMetadataError, Kind.UNREACHABLE, "what answers at HF_ENDPOINT, or in between, is no hub"),
    (httpx2.TimeoutException, Kind.UNREACHABLE, f"the hub is silent; {KEPT}"),
    (
        httpx2.ConnectError,
        Kind.UNREACHABLE,
        "the hub cannot be reached: there is no network, or no hub at HF_ENDPOINT",
    ),
    (httpx2.HTTPError, Kind.UNREACHABLE, f"the connection to the hub broke off again and again; {KEPT}"),
    (PermissionError, Kind.UNWRITABLE, "the hub's cache may not be written to"),
)


@contextmanager
def hub_failures(order: Order) -> Generator[None]:
    """Turn whatever ends the block, and is no bug, into `Failed`."""
    try:
        yield
    except LocalEntryNotFoundError as error:  # that is how the library wraps what kept it from asking
        raise _failed(order, error.__cause__ or error) from error
    except HFValidationError as error:
        raise Failed(Kind.NOT_FOUND, "the hub gives no such names") from error
    except (OSError, httpx2.HTTPError) as error:
        raise _failed(order, error) from error


def _failed(order: Order, error: BaseException) -> Failed:
    if isinstance(error, HfHubHTTPError):
        return _refused(order, error)
    for kind, failure, words in _TOLD:
        if isinstance(error, kind):
            return Failed(failure, words)
    if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return Failed(Kind.DISK_FULL, "the disk became full")
    return Failed(Kind.UNWRITABLE, "the hub's cache cannot be read or written to")


def _refused(order: Order, error: HfHubHTTPError) -> Failed:
    token = "HF_TOKEN, or the token that is stored," if get_token() else "HF_TOKEN"
    match error:
        case GatedRepoError():
            who = "ask for access on its page on the hub, then set HF_TOKEN to a token of that account"
            return Failed(Kind.FORBIDDEN, f"it is gated: {who}")
        case DisabledRepoError():
            return Failed(Kind.FORBIDDEN, "the hub has disabled it")
        case RepositoryNotFoundError():
            lacking = f"{token} does not open it" if get_token() else f"{token} is not set to a token that opens it"
            return Failed(Kind.NOT_FOUND, f"the hub has no such repository, or it is private and {lacking}")
        case RevisionNotFoundError():
            return Failed(Kind.NOT_FOUND, f"it has no revision {order.revision}")
        case RemoteEntryNotFoundError():
            return Failed(Kind.NOT_FOUND, "a file that the hub lists is not there")
        case _:
            return _other(error, token)


def _other(error: HfHubHTTPError, token: str) -> Failed:
    code = error.response.status_code
    if code in UNAUTHORIZED:
        return Failed(Kind.FORBIDDEN, f"the hub answers {code}: {token} is not one that it takes for this")
    return Failed(Kind.UNREACHABLE, f"the hub answers {code}; {KEPT}")
