"""What begins every request: for which model, under which id, and how much it hurries."""

from dataclasses import dataclass
from typing import Protocol

from worker.errors import InvalidField

MAX_REQUEST_ID_CHARS = 64
MIN_PRIORITY, MAX_PRIORITY = -128, 127


@dataclass(frozen=True, slots=True)
class Envelope:
    """What begins every request; the gateway has read it too."""

    model: str
    request_id: str
    priority: int


class EnvelopedRequest(Protocol):
    """Any request that begins with an envelope."""

    @property
    def model(self) -> str:
        """Canonical name."""
        ...

    @property
    def request_id(self) -> str:
        """What people know it by."""
        ...

    @property
    def priority(self) -> int:
        """Which of those that wait goes first."""
        ...


def read_envelope(message: EnvelopedRequest) -> Envelope:
    """Check what begins a request.

    Raises:
        InvalidField: its id or its priority is out of bounds.
    """
    request_id = message.request_id
    if not 1 <= len(request_id) <= MAX_REQUEST_ID_CHARS or not request_id.isascii() or not request_id.isprintable():
        raise InvalidField("request_id", f"1 to {MAX_REQUEST_ID_CHARS} printable ASCII characters")
    if not MIN_PRIORITY <= message.priority <= MAX_PRIORITY:
        raise InvalidField("priority", f"from {MIN_PRIORITY} to {MAX_PRIORITY}")
    return Envelope(message.model, request_id, message.priority)
