"""The contract of Pomona (`pomona.v1`), and a thin client of it.

`connect` and `connect_async` open a client; what else stands here is what they give and raise. Nothing is imported
before it is asked for, so that programs which need the contract alone pay for nothing else.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pomona.answer import Answer
    from pomona.async_answer import AsyncAnswer
    from pomona.async_client import AsyncClient, connect_async
    from pomona.async_transcript import AsyncTranscript
    from pomona.client import Client, connect
    from pomona.failure import PomonaError
    from pomona.heard import Heard
    from pomona.transcript import Transcript
    from pomona.written import Written

__all__ = [
    "Answer",
    "AsyncAnswer",
    "AsyncClient",
    "AsyncTranscript",
    "Client",
    "Heard",
    "PomonaError",
    "Transcript",
    "Written",
    "connect",
    "connect_async",
]

_HOMES = {
    "Answer": "pomona.answer",
    "AsyncAnswer": "pomona.async_answer",
    "AsyncClient": "pomona.async_client",
    "AsyncTranscript": "pomona.async_transcript",
    "Client": "pomona.client",
    "Heard": "pomona.heard",
    "PomonaError": "pomona.failure",
    "Transcript": "pomona.transcript",
    "Written": "pomona.written",
    "connect": "pomona.client",
    "connect_async": "pomona.async_client",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'pomona' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
