"""The trace that an RPC belongs to: W3C's `traceparent`, read, continued and handed on.

Source: W3C Trace Context, level 1, section 3.2.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

TRACEPARENT_KEY = "traceparent"
SAMPLED = 0x01
_FORM = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")


@dataclass(frozen=True, slots=True)
class Trace:
    """Where an RPC stands in its trace.

    Attributes:
        trace_id: 32 hexadecimal digits.
        parent_id: the caller's span, 16 hexadecimal digits; empty where the trace begins here.
        span_id: the RPC's own span; empty where no spans are written here.
        call_id: the span of the call to the worker; empty likewise.
        is_sampled: whether its spans are wanted.
    """

    trace_id: str
    parent_id: str = ""
    span_id: str = ""
    call_id: str = ""
    is_sampled: bool = False

    @property
    def traceparent(self) -> str:
        """What a worker is told: its caller is the span of the call, or the client's where no spans are written."""
        return f"00-{self.trace_id}-{self.call_id or self.parent_id}-{SAMPLED if self.is_sampled else 0:02x}"


Metadata: TypeAlias = Iterable[tuple[str, str | bytes]]
NewTrace: TypeAlias = Callable[[Metadata], Trace | None]
"""Returns the trace of an RPC with this metadata."""


def told_trace(metadata: Metadata) -> Trace | None:
    """Return the trace that a caller told of, None where it told of none in the right form."""
    told = next((value for key, value in metadata if key == TRACEPARENT_KEY), None)
    match = _FORM.fullmatch(told) if isinstance(told, str) else None
    if match is None:
        return None
    return Trace(match[1], match[2], is_sampled=bool(int(match[3], 16) & SAMPLED))


def continued_trace(metadata: Metadata, ratio: float) -> Trace:
    """Return the trace of an RPC whose spans are written here.

    Args:
        metadata: the caller's; whether its trace is sampled is its own decision.
        ratio: of the traces that begin here, the share that is sampled, 0 to 1; the same ones on every server.
    """
    told = told_trace(metadata)
    trace_id = secrets.token_hex(16) if told is None else told.trace_id
    is_sampled = int(trace_id[16:], 16) < ratio * 2**64 if told is None else told.is_sampled
    parent_id = "" if told is None else told.parent_id
    return Trace(trace_id, parent_id, secrets.token_hex(8), secrets.token_hex(8), is_sampled)
