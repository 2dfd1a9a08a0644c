"""What can be wrong with a checkpoint, and with rendering its chat template.

    CheckpointError            reason of the wire
    ├── CheckpointMissing      CHECKPOINT_REJECTED   a file or folder is not there or cannot be read
    ├── CheckpointRejected     CHECKPOINT_REJECTED   understood, and not something that this build runs
    └── CheckpointCorrupt      CHECKPOINT_CORRUPT    contradicts itself or breaks off
    TemplateRejected           CHAT_TEMPLATE_REJECTED

A message names the file by its base name and the key within it, never a folder: it may reach a client.
"""

from __future__ import annotations

from typing import ClassVar

_MAX_QUOTED_CHARS = 200


class CheckpointError(Exception):
    """Raised when a checkpoint cannot be used.

    Attributes:
        file: base name of the file that is at fault.
        key: what in it is at fault: a config key, tensor or metadata name; empty for the file as a whole.
        problem: one clause in plain words.
        reason: the `ErrorReason` that a client sees.
    """

    reason: ClassVar[str] = "MODEL_LOAD_FAILED"

    def __init__(self, problem: str, *, file: str, key: str = "") -> None:
        """Keep the facts, cut to a length that is safe to pass on."""
        self.file = quotable(file)
        self.key = quotable(key)
        self.problem = quotable(problem)
        place = f"{self.file}: {self.key}" if self.key else self.file
        super().__init__(f"{place}: {self.problem}")

    @property
    def metadata(self) -> dict[str, str]:
        """The facts as the string map of an `ErrorInfo`."""
        facts = {"file": self.file}
        if self.key:
            facts["key"] = self.key
        return facts


class CheckpointMissing(CheckpointError):
    """Raised when a file or folder of a checkpoint is not there or cannot be read."""

    reason: ClassVar[str] = "CHECKPOINT_REJECTED"


class CheckpointRejected(CheckpointError):
    """Raised when a checkpoint is understood but is nothing that this build runs or dares to read."""

    reason: ClassVar[str] = "CHECKPOINT_REJECTED"


class CheckpointCorrupt(CheckpointError):
    """Raised when a file contradicts itself, its neighbours or its own length."""

    reason: ClassVar[str] = "CHECKPOINT_CORRUPT"


class TemplateRejected(Exception):
    """Raised when the chat template cannot be used, or fails on these messages.

    The text is safe to pass on: our own words, or what the template itself raised, cut to 500 characters.
    """

    reason: ClassVar[str] = "CHAT_TEMPLATE_REJECTED"


def quotable(text: str, max_chars: int = _MAX_QUOTED_CHARS) -> str:
    """Return `text` fit for a message: printable, one line, at most `max_chars` characters."""
    line = "".join(character if character.isprintable() else " " for character in text[: max_chars + 1])
    return line if len(line) <= max_chars else line[: max_chars - 1] + "…"
