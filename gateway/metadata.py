"""Which metadata passes between clients and workers, and what a worker is told of a request beside its body."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gateway.envelope import Envelope
from gateway.requests import Request
from gateway.trace import TRACEPARENT_KEY, Trace

PRIVATE_PREFIX = "x-pomona-"
PASSED_KEYS = frozenset({"x-request-id"})
TRACESTATE_KEY = "tracestate"

Metadata = tuple[tuple[str, str | bytes], ...]


def public(metadata: Any) -> Metadata:
    """Return the pairs that clients may see."""
    return tuple((key, value) for key, value in metadata if not key.startswith(PRIVATE_PREFIX))


def for_worker(
    sent: Iterable[tuple[str, Any]], request: Request, envelope: Envelope, group: str, trace: Trace | None
) -> Metadata:
    """Return what the worker is told, but for its secret.

    Args:
        sent: by the client; only the known keys of it pass.
        request: whom it concerns.
        envelope: as the client wrote it.
        group: whose cached prompts the request may share.
        trace: which the request belongs to.
    """
    passed = PASSED_KEYS if trace is None or not trace.parent_id else PASSED_KEYS | {TRACESTATE_KEY}
    return (
        *((key, value) for key, value in sent if key in passed),
        *(((TRACEPARENT_KEY, trace.traceparent),) if trace is not None else ()),
        ("x-pomona-model", request.model),
        ("x-pomona-request-id", request.key.request_id),
        ("x-pomona-priority", str(envelope.priority)),
        ("x-pomona-principal", request.key.principal),
        ("x-pomona-group", group),
    )
