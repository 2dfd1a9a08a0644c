"""What every dialect offers."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from worker.dialects.call import Tool, ToolCall


class ToolParser(Protocol):
    """Splits the content of one sequence into text and whole calls, however it is cut into pieces."""

    @property
    def num_malformed(self) -> int:
        """Calls that were cut off or make no sense, and so came out as text; for the log."""
        ...

    @property
    def num_mismatched(self) -> int:
        """Values that do not fit their declared kind and were kept as written; for the log."""
        ...

    def add(self, text: str) -> list[str | ToolCall]:
        """Read what follows, and return what is certain now: text and calls in their order."""
        ...

    def finish(self) -> list[str | ToolCall]:
        """Return what was held back when nothing follows; a call that was cut off comes out as its text."""
        ...


class Dialect(Protocol):
    """One way of writing calls."""

    @property
    def name(self) -> str:
        """What settings know it by."""
        ...

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that may be special tokens, and that the parser has to see."""
        ...

    def parser(self, tools: Mapping[str, Tool]) -> ToolParser:
        """Return a fresh parser.

        Args:
            tools: those that the request declares, by name.
        """
        ...

    def grammar(self, tools: Sequence[Tool], special: Mapping[str, int]) -> str:
        """Write the Lark grammar, for llguidance, of one or more calls in this dialect and nothing else.

        Args:
            tools: those that may be called, at least one.
            special: token id of each mark that is a special token of the tokenizer; others are read as text.
        """
        ...
